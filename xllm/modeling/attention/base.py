"""What a forward pass is told about its batch, and what an attention backend must offer.

Shapes: T tokens of the step, S rows, B blocks per row, Hq/Hk query/KV heads, D head dimension.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from xllm.hardware.kernels.shared_prefix import SharedPrefix
from xllm.kv_cache.layout import CacheGroup, CacheSpec


@dataclasses.dataclass(slots=True)
class AttentionMetadata:
    """One step's batch as one cache group sees it. Borrowed: valid until the next step is built.

    Row ``i`` computes its tokens ``seq_lens[i] - query_len(i) .. seq_lens[i]``; they lie at
    ``query_start_loc[i] .. query_start_loc[i + 1]`` of the flat batch. ``block_table[i, p // bs]``
    holds position ``p``; in a sliding-window group, entries wholly left of every query's window
    are stale and must not be read.
    """

    query_start_loc: Tensor  # (S + 1,) int32
    seq_lens: Tensor  # (S,) int32, tokens in the cache after this step
    block_table: Tensor  # (S, B) int32
    slot_mapping: Tensor  # (T,) int64: block * block_size + offset; negative means "do not write"
    max_query_len: int
    prefix: SharedPrefix | None = None  # for backends with ``reads_shared_prefixes``
    # (S,) int32, query tokens of rows with more than one, else 0: by backends that plan it.
    long_query_lens: Tensor | None = None


@dataclasses.dataclass(slots=True)
class ForwardContext:
    """Everything a model's forward needs besides ids and positions.

    ``kv_caches[layer]`` is a pair of views of logical shape (num_blocks, block_size, Hk, D) with
    any strides; ``metadata[group_of_layer[layer]]`` describes the batch for that layer. An encoder
    caches nothing: it has one metadata without blocks, and its tokens may have types.
    """

    metadata: tuple[AttentionMetadata, ...]
    kv_caches: list[tuple[Tensor, Tensor]]
    group_of_layer: tuple[int, ...]
    backend: AttentionBackend
    token_types: Tensor | None = None  # (T,) int64: 1 in the second text of a pair; None: all 0


class GraphSupport(enum.IntEnum):
    """Which batches a device graph may capture with the backend inside. Higher includes lower."""

    NONE = 0
    DECODE = 1  # one query token per row
    UNIFORM = 2  # the same number of query tokens in every row
    ALWAYS = 3


class AttentionLayer(Protocol):
    """What a backend reads of the layer that calls it; ``layers.attention`` says what it means."""

    layer_id: int
    head_dim: int
    scale: float
    window: int
    softcap: float
    sinks: Tensor | None


class AttentionBackend(Protocol):
    """Paged causal attention on one kind of device. Holds no request state."""

    device_type: str  # where it runs, as torch names it
    graph_support: GraphSupport
    preferred_block_size: int
    reads_shared_prefixes: bool  # decode rows' common leading blocks are read once if it is told

    def kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        """Physical shape of one layer's cache: one tensor that holds keys and values."""
        ...

    def kv_views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value views (num_blocks, block_size, Hk, D) of a tensor of that shape."""
        ...

    def plan(self, metadata: AttentionMetadata) -> None:
        """Prepare one step of one group before the first ``forward``.

        Outside any graph, except with ``GraphSupport.ALWAYS``: then it queues device work only,
        and graphs of mixed batches capture it.
        """
        ...

    def forward(self, q: Tensor, layer: AttentionLayer, context: ForwardContext) -> Tensor:
        """Attend ``q`` (T, Hq, D) to the cache, which holds this step's keys already.

        Returns (T, Hq * D).
        """
        ...


@runtime_checkable
class _CachedLayer(Protocol):
    layer_id: int

    def cache_spec(self, block_size: int, dtype_bytes: int) -> CacheSpec: ...


def cache_groups(model: nn.Module, block_size: int, dtype_bytes: int) -> tuple[CacheGroup, ...]:
    """The model's attention layers grouped by equal cache spec, unsized.

    In order of each group's first layer: a group's place is its index in
    ``ForwardContext.metadata``.
    """
    groups: dict[CacheSpec, list[int]] = {}
    for module in model.modules():
        if isinstance(module, _CachedLayer):
            spec = module.cache_spec(block_size, dtype_bytes)
            groups.setdefault(spec, []).append(module.layer_id)
    return tuple(CacheGroup(spec=spec, layers=tuple(ids)) for spec, ids in groups.items())
