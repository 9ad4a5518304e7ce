"""The ``triton`` backend: the paged attention of ``hardware.kernels.triton``, for CUDA."""

from __future__ import annotations

from torch import Tensor

from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.modeling.attention.base import (
    AttentionLayer,
    AttentionMetadata,
    ForwardContext,
    GraphSupport,
)


class Backend:
    """Needs no plan: grids depend on shapes alone, lengths and tables are read on the device.

    A block's keys and values lie together, each head's contiguous.
    """

    device_type = "cuda"
    graph_support = GraphSupport.ALWAYS
    preferred_block_size = 32
    reads_shared_prefixes = True

    def kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        return (num_blocks, 2, num_kv_heads, block_size, head_dim)

    def kv_views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        return cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)

    def plan(self, metadata: AttentionMetadata) -> None:
        """Nothing to plan."""

    def forward(self, q: Tensor, layer: AttentionLayer, context: ForwardContext) -> Tensor:
        metadata = context.metadata[context.group_of_layer[layer.layer_id]]
        k_cache, v_cache = context.kv_caches[layer.layer_id]
        return paged_attention(
            q,
            k_cache,
            v_cache,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            layer.scale,
            layer.softcap,
            layer.window,
            metadata.max_query_len,
            layer.sinks,
            metadata.prefix if not layer.window else None,
        )
