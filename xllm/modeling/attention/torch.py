"""The ``torch`` backend: paged attention of ``hardware.kernels.ops``, on CPU and as reference."""

from __future__ import annotations

from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.modeling.attention.base import (
    AttentionLayer,
    AttentionMetadata,
    ForwardContext,
    GraphSupport,
)


class Backend:
    """Needs no plan. Keeps each head's keys of a block contiguous, so that decode streams them."""

    device_type = "cpu"
    graph_support = GraphSupport.ALWAYS
    preferred_block_size = 16
    reads_shared_prefixes = False

    def kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        return (2, num_blocks, num_kv_heads, block_size, head_dim)

    def kv_views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        return cache[0].transpose(1, 2), cache[1].transpose(1, 2)

    def plan(self, metadata: AttentionMetadata) -> None:
        assert metadata.query_start_loc.shape[0] == metadata.seq_lens.shape[0] + 1

    def forward(self, q: Tensor, layer: AttentionLayer, context: ForwardContext) -> Tensor:
        metadata = context.metadata[context.group_of_layer[layer.layer_id]]
        k_cache, v_cache = context.kv_caches[layer.layer_id]
        return ops.paged_attention(
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
        )
