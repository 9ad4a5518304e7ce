"""The forward pass of any batch as a device graph: prefill, chunks and decode rows together.

The attention backend reads lengths and tables on the device and its grids depend on shapes alone,
so a graph of N tokens and R rows runs every batch that fits. What is left of the bucket is padding:
tokens of no row, which write no cache slot, and rows without tokens.

Where graphs are captured on demand there are no buckets: a number of tokens runs eagerly the first
time, is captured the second time and replayed from then on.
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from xllm.execution.executor.inputs import BatchShape, ModelInputs
from xllm.execution.executor.runners.eager import EagerRunner
from xllm.hardware.graphs import CaptureError, Graph, GraphApi
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.attention import AttentionBackend, AttentionMetadata, ForwardContext
from xllm.modeling.models.decoder import CausalLM

_SMALLEST = 16
_FINE_FROM = 256
_FINEST = range(512, 2048)
# On an H200 a prompt's token beside 256 decoding rows takes 12 us in steps of 1,024 tokens and 18
# in steps of 384 (8B in FP8; in bfloat16 23 and 27, 0.6B 2.7 and 6.6, 30B-A3B 9.7 and 18.6).
_FULL_STEP = 1024
# Graphs kept where they are captured on demand: those of the token counts that came last.
MAX_ON_DEMAND = 64


def token_buckets(max_tokens: int) -> list[int]:
    """Token counts to capture, ascending: two per doubling from 16, three from 128, four from 256,
    eight from 512 to 2,048, ``max_tokens``.

    Below 256 tokens a step costs what reading the weights costs, above it grows with the tokens,
    padding included: on an H200 in steps of 64 tokens, the tiles of its products. Steps of more
    than 2,048 tokens are few.
    """
    sizes = set()
    size = _SMALLEST
    while size < max_tokens:
        sizes |= {size, size + size // 2}
        if size >= _FINE_FROM // 2:
            sizes.add(size + size // 4)
        if size >= _FINE_FROM:
            sizes.add(size + 3 * size // 4)
        if size in _FINEST:
            sizes |= set(range(size, 2 * size, size // 8))
        size *= 2
    return sorted({s for s in sizes if s < max_tokens} | {max_tokens})


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch: tokens, rows, and the width of each group's block table."""

    max_tokens: int
    max_rows: int
    table_widths: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class MixedOutput:
    """Hidden states in the graph's own memory. Borrowed until the next replay."""

    hidden: Tensor  # (N, H)


class MixedGraphRunner:
    """Fits ``Runner``. ``num_replays`` counts what it ran."""

    def __init__(
        self,
        model: CausalLM,
        storage: CacheStorage,
        backend: AttentionBackend,
        graphs: GraphApi,
        limits: BatchLimits,
        device: torch.device,
    ) -> None:
        self._model = model
        self._eager = EagerRunner(model)
        self._kv_caches = storage.layers
        self._group_of_layer = storage.group_of_layer
        self._backend = backend
        self._api = graphs
        self._limits = limits
        self._buckets = token_buckets(limits.max_tokens)
        self._rehearsed: set[int] = set()
        self._graphs: dict[int, Graph] = {}  # on demand: by last use, the oldest first
        self._seen: set[int] = set()  # on demand: token counts that came once
        self._enabled = graphs.on_demand  # else once buckets are captured
        self._memory = _Memory.allocate(limits, device)
        self.num_replays = 0

    def rehearsals(self) -> list[Callable[[], object]]:
        """Work that launches every kernel of the graphs, which differ by the number of tokens. It
        may be called with kernels that are loaded instead of launched."""
        self._memory.clear()
        return [functools.partial(self._rehearse, size) for size in self._buckets]

    def capture(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Capture every bucket, the largest first, so that the others fit into its memory.

        On demand there is nothing to do.
        """
        if self._api.on_demand:
            return
        self._memory.clear()
        for number, size in enumerate(reversed(self._buckets)):
            if size not in self._rehearsed:
                self._rehearse(size)
            self._graphs[size] = self._api.capture(functools.partial(self._forward, size))
            if progress is not None:
                progress(number + 1, len(self._buckets))
        self._enabled = True

    def _rehearse(self, size: int) -> None:
        """Outside capture: loads kernels and sets libraries up, once for all layers."""
        self._forward(size, rehearsal=True)
        self._rehearsed.add(size)

    @property
    def full_step(self) -> int:
        """See ``WorkerInfo``."""
        return 0 if self._api.on_demand else _FULL_STEP

    def can_run(self, shape: BatchShape) -> bool:
        """Whether a batch of this shape fits a graph."""
        return (
            self._enabled
            and shape.num_tokens <= self._limits.max_tokens
            and shape.num_rows <= self._limits.max_rows
        )

    def run(self, inputs: ModelInputs, context: ForwardContext) -> Tensor:
        """Hidden states (T, H), borrowed until the next step."""
        num_tokens = inputs.shape.num_tokens
        if self._api.on_demand:
            return self._run_exact(num_tokens, inputs, context)
        size = self._buckets[bisect_left(self._buckets, num_tokens)]
        self._memory.load(inputs, size)
        graph = self._graphs[size]
        graph.replay()
        self.num_replays += 1
        output: MixedOutput = graph.output
        return output.hidden[:num_tokens]

    def _run_exact(self, size: int, inputs: ModelInputs, context: ForwardContext) -> Tensor:
        graph = self._graphs.pop(size, None)
        if graph is None and size not in self._seen:
            self._seen.add(size)
            return self._eager.run(inputs, context)
        self._memory.load(inputs, size)
        if graph is None:
            try:
                graph = self._api.capture(functools.partial(self._forward, size))
            except CaptureError:
                self._enabled = False
                return self._eager.run(inputs, context)
            if len(self._graphs) == MAX_ON_DEMAND:
                self._graphs.pop(next(iter(self._graphs)))
        else:
            graph.replay()
            self.num_replays += 1
        self._graphs[size] = graph
        output: MixedOutput = graph.output
        return output.hidden

    def _forward(self, size: int, *, rehearsal: bool = False) -> MixedOutput:
        """What a graph of ``size`` tokens records, or its rehearsal."""
        memory = self._memory
        metadata = tuple(
            AttentionMetadata(
                query_start_loc=memory.query_start_loc,
                seq_lens=memory.seq_lens,
                block_table=blocks,
                slot_mapping=slots[:size],
                max_query_len=size,
            )
            for slots, blocks in zip(memory.slots, memory.blocks, strict=True)
        )
        for batch in metadata:
            self._backend.plan(batch)
        context = ForwardContext(metadata, self._kv_caches, self._group_of_layer, self._backend)
        forward = self._model.rehearse if rehearsal else self._model
        return MixedOutput(forward(memory.input_ids[:size], memory.positions[:size], context))


@dataclasses.dataclass(frozen=True, slots=True)
class _Memory:
    """The tensors at whose addresses the graphs read. Ids and positions of padding are stale."""

    input_ids: Tensor  # (N,) int32
    positions: Tensor  # (N,) int64
    query_start_loc: Tensor  # (R + 1,) int32
    seq_lens: Tensor  # (R,) int32
    slots: list[Tensor]  # (N,) int64 per group
    blocks: list[Tensor]  # (R, B) int32 per group

    @classmethod
    def allocate(cls, limits: BatchLimits, device: torch.device) -> _Memory:
        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        tokens, rows = limits.max_tokens, limits.max_rows
        return cls(
            input_ids=zeros(tokens),
            positions=zeros(tokens, dtype=torch.int64),
            query_start_loc=zeros(rows + 1),
            seq_lens=zeros(rows),
            slots=[zeros(tokens, dtype=torch.int64) for _ in limits.table_widths],
            blocks=[zeros(rows, width) for width in limits.table_widths],
        )

    def clear(self) -> None:
        """A batch of padding only."""
        for tensor in (self.query_start_loc, self.seq_lens):
            tensor.zero_()
        for slots in self.slots:
            slots.fill_(-1)

    def load(self, inputs: ModelInputs, size: int) -> None:
        """Copy a batch in and mark the rest of a bucket of ``size`` tokens as padding."""
        tokens, rows = inputs.shape.num_tokens, inputs.shape.num_rows
        first = inputs.metadata[0]
        self.input_ids[:tokens].copy_(inputs.input_ids)
        self.positions[:tokens].copy_(inputs.positions)
        self.query_start_loc[: rows + 1].copy_(first.query_start_loc)
        self.query_start_loc[rows + 1 :].fill_(tokens)
        self.seq_lens[:rows].copy_(first.seq_lens)
        self.seq_lens[rows:].zero_()
        for group, metadata in enumerate(inputs.metadata):
            self.slots[group][:tokens].copy_(metadata.slot_mapping)
            self.slots[group][tokens:size].fill_(-1)
            self.blocks[group][:rows, : metadata.block_table.shape[1]].copy_(metadata.block_table)
