"""Decode steps as device graphs: expansion, model, logits, sampling and token feedback in one.

The host packs five numbers per row into pinned memory, queues one copy and one replay, and never
waits: the sampled tokens are in the device's rows when the next step's graph reads them.
A batch runs in the smallest captured bucket that holds it; the rest of the bucket is padding, which
has length 0, writes no cache slot and no token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from xllm.core.messages.worker import MAX_SHARED_PREFIXES
from xllm.core.utils.arrays import Float32Array, Int32Array
from xllm.hardware.kernels import ops
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, SharedPrefix
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.attention import AttentionBackend, AttentionMetadata, ForwardContext
from xllm.modeling.models.decoder import CausalLM

_COLUMNS = 5  # rows, seq_lens, inverse temperature (as bits), two random keys
# Copies in flight: one step runs, one is queued; a slot is free again when its copy is over.
_HOST_SLOTS = 4
_FEWEST_SHARING = 16  # smallest bucket with a graph for rows that share a prefix


class Graph(Protocol):
    """Captured work; a replay overwrites the tensors of ``output``."""

    output: Any

    def replay(self) -> None: ...


class GraphApi(Protocol):
    """What a platform offers as ``graphs``.

    ``on_demand``: a capture costs about one run and computes it too, so graphs are captured when
    they are first needed and for the exact number of rows.
    """

    on_demand: bool

    def capture(self, work: Callable[[], Any]) -> Graph: ...


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTables:
    """The persistent rows that a decode step reads and writes."""

    token_ids: Tensor  # (R, W) int32
    block_tables: Sequence[Tensor]  # (R, B) int32, one per cache group
    block_sizes: Sequence[int]
    prefix_group: int | None  # the group whose shared prefixes are told


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixRows:
    """``hardware.kernels.shared_prefix.SharedPrefix`` of a batch, on the host."""

    lens: Int32Array  # (S,)
    members: Int32Array  # (L, LINE_ROWS), L at most ``max_prefix_lines(S)``


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeRows:
    """One decode step as the host knows it: S rows, each computing its last known token."""

    rows: Int32Array  # (S,)
    seq_lens: Int32Array  # (S,) tokens with the one computed now
    inverse_temperature: Float32Array | None  # (S,) 0 is greedy; None when all are
    keys: Int32Array | None  # (2, S) of ``sampling.rng``; None when all rows are greedy
    prefix: PrefixRows | None = None  # only where the runner ``reads_prefixes``


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeOutput:
    """Views of the graph's own memory. Borrowed: queue their use before the next replay."""

    tokens: Tensor  # (S,) int32
    best_logits: Tensor  # (S,) float32
    logits: Tensor  # (S, V) in the head's dtype
    write_index: Tensor  # (S,) int64 into the flat token table


def buckets(max_rows: int) -> list[int]:
    """Batch sizes to capture, ascending: 1, 2, 4, 8, then two per doubling, then ``max_rows``."""
    sizes = {1, 2, 4, 8, 12}
    size = 16
    while size <= max_rows:
        sizes |= {size, size + size // 2}
        size *= 2
    return sorted({s for s in sizes if s < max_rows} | {max_rows})


def prefix_buckets(decode_buckets: Sequence[int]) -> list[int]:
    """Batch sizes to capture with a shared prefix: powers of two from 16, and the largest."""
    largest = decode_buckets[-1]
    if largest < _FEWEST_SHARING:
        return []
    powers = {s for s in decode_buckets if s >= _FEWEST_SHARING and s & (s - 1) == 0}
    return sorted(powers | {largest})


def max_prefix_lines(num_rows: int) -> int:
    """Lines that ``PrefixRows`` of that many rows need at most."""
    return -(-num_rows // LINE_ROWS) + MAX_SHARED_PREFIXES - 1


class FullGraphRunner:
    """Replays decode steps. Holds the inputs and outputs that its graphs were captured with.

    ``num_replays`` counts the steps it ran, of which ``num_padding_rows`` rows were padding.
    """

    def __init__(
        self,
        model: CausalLM,
        storage: CacheStorage,
        backend: AttentionBackend,
        tables: DeviceTables,
        graphs: GraphApi,
        max_rows: int,
    ) -> None:
        self._model = model
        self._kv_caches = storage.layers
        self._group_of_layer = storage.group_of_layer
        self._backend = backend
        self._tables = tables
        self._api = graphs
        self._buckets = buckets(max_rows)
        self._prefix_buckets: list[int] = []
        if backend.reads_shared_prefixes:
            self._prefix_buckets = prefix_buckets(self._buckets)
        self._graphs: dict[tuple[int, bool], Graph] = {}
        self._memory = _Memory.allocate(tables, self._buckets[-1])
        self._staging = _Staging(self._memory.packed)
        self.num_replays = 0
        self.num_padding_rows = 0

    def rehearsals(self) -> list[Callable[[], object]]:
        """Work that launches every kernel of the graphs: one row, few, and many."""
        sizes = [(size, False) for size in {*self._buckets[:2], self._buckets[-1]}]
        sizes += [(size, True) for size in {*self._prefix_buckets[:1], *self._prefix_buckets[-1:]}]
        return [functools.partial(self._decode, size, shares) for size, shares in sizes]

    def capture(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Capture every bucket, the largest first, so that the others fit into its memory.

        On demand, capture one row, to see whether the model can be captured at all.

        Raises:
            CaptureError: it cannot.
        """
        wanted = [(size, False) for size in self._buckets]
        wanted += [(size, True) for size in self._prefix_buckets]
        wanted.sort(reverse=True)
        if self._api.on_demand:
            wanted = [(1, False)]
        for number, (size, shares) in enumerate(wanted):
            self._staging.load(_packed(size, shares))
            work = functools.partial(self._decode, size, shares)
            if not self._api.on_demand:
                work()  # outside capture: compiles kernels, sets libraries up
            self._graphs[size, shares] = self._api.capture(work)
            if progress is not None:
                progress(number + 1, len(wanted))

    @property
    def reads_prefixes(self) -> bool:
        """Whether shared prefixes are read once, if ``run`` is told of them."""
        return bool(self._prefix_buckets)

    def can_run(self, num_rows: int) -> bool:
        """Whether a decode step of that many rows has a graph."""
        return bool(self._graphs) and 0 < num_rows <= self._buckets[-1]

    def run(self, step: DecodeRows, on_launch: Callable[[], None] | None = None) -> DecodeOutput:
        """Queue one step: one copy, one replay.

        Args:
            on_launch: called between the two.
        """
        count = len(step.rows)
        shares = step.prefix is not None
        size = count
        if not self._api.on_demand:
            sizes = self._prefix_buckets if shares else self._buckets
            size = next(s for s in sizes if s >= count)
        packed = _packed(size, shares)
        columns = packed[: _COLUMNS * size].reshape(_COLUMNS, size)
        columns[0, :count] = step.rows
        columns[1, :count] = step.seq_lens
        if step.inverse_temperature is not None:
            assert step.keys is not None
            columns[2, :count] = step.inverse_temperature.view(np.int32)
            columns[3:, :count] = step.keys
        if step.prefix is not None:
            tail = packed[_COLUMNS * size :]
            tail[:count] = step.prefix.lens
            tail[size : size + step.prefix.members.size] = step.prefix.members.ravel()
        self._staging.load(packed)
        graph = self._graphs.get((size, shares))
        if on_launch is not None:
            on_launch()
        if graph is None:
            graph = self._api.capture(functools.partial(self._decode, size, shares))
            self._graphs[size, shares] = graph
        else:
            graph.replay()
        output: DecodeOutput = graph.output
        self.num_replays += 1
        self.num_padding_rows += size - count
        return DecodeOutput(
            output.tokens[:count],
            output.best_logits[:count],
            output.logits[:count],
            output.write_index[:count],
        )

    def _decode(self, size: int, shares: bool) -> DecodeOutput:
        """What a graph of ``size`` rows records, with shared prefixes or without."""
        memory = self._memory
        rows, seq_lens, temperature, *_keys = packed = memory.packed[: _COLUMNS * size].view(
            _COLUMNS, size
        )
        input_ids, positions = memory.input_ids[:size], memory.positions[:size]
        write_index = memory.write_index[:size]
        prefix = None
        if shares:
            end = (_COLUMNS + 1) * size
            members = memory.packed[end : end + max_prefix_lines(size) * LINE_ROWS]
            prefix = SharedPrefix(memory.packed[_COLUMNS * size : end], members.view(-1, LINE_ROWS))
        metadata = []
        for group, block_size in enumerate(self._tables.block_sizes):
            slots, blocks = memory.slots[group][:size], memory.blocks[group][:size]
            ops.expand_decode(
                rows,
                seq_lens,
                self._tables.token_ids,
                self._tables.block_tables[group],
                block_size,
                input_ids,
                positions,
                write_index,
                slots,
                blocks,
            )
            metadata.append(
                AttentionMetadata(
                    query_start_loc=memory.query_start_loc[: size + 1],
                    seq_lens=seq_lens,
                    block_table=blocks,
                    slot_mapping=slots,
                    max_query_len=1,
                    max_seq_len=self._tables.token_ids.shape[1] - 1,
                    prefix=prefix if group == self._tables.prefix_group else None,
                )
            )
        context = ForwardContext(
            tuple(metadata), self._kv_caches, self._group_of_layer, self._backend
        )
        hidden = self._model(input_ids, positions, context)
        logits = self._model.compute_narrow_logits(hidden)
        tokens, best = memory.tokens[:size], memory.best_logits[:size]
        ops.sample_tokens(
            logits,
            temperature.view(torch.float32),
            packed[3:],
            tokens,
            best,
            self._tables.token_ids,
            write_index,
        )
        return DecodeOutput(tokens, best, logits, write_index)


@dataclasses.dataclass(frozen=True, slots=True)
class _Memory:
    """The tensors at whose addresses the graphs read and write, sized for the largest bucket."""

    packed: Tensor  # int32, as ``_packed``: what the host sends
    input_ids: Tensor  # (S,) int32
    positions: Tensor  # (S,) int64
    write_index: Tensor  # (S,) int64
    query_start_loc: Tensor  # (S + 1,) int32: 0, 1, 2, ...
    slots: list[Tensor]  # (S,) int64 per group
    blocks: list[Tensor]  # (S, B) int32 per group
    tokens: Tensor  # (S,) int32
    best_logits: Tensor  # (S,) float32

    @classmethod
    def allocate(cls, tables: DeviceTables, size: int) -> _Memory:
        device = tables.token_ids.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            packed=zeros(_packed(size, True).size),
            input_ids=zeros(size),
            positions=zeros(size, dtype=torch.int64),
            write_index=zeros(size, dtype=torch.int64),
            query_start_loc=torch.arange(size + 1, dtype=torch.int32, device=device),
            slots=[zeros(size, dtype=torch.int64) for _ in tables.block_tables],
            blocks=[zeros(size, table.shape[1]) for table in tables.block_tables],
            tokens=zeros(size),
            best_logits=zeros(size, dtype=torch.float32),
        )


def _packed(size: int, shares: bool) -> Int32Array:
    """Room for a step of ``size`` rows: ``_COLUMNS`` columns, and with shared prefixes one more
    of their lengths and the lines of their members. As it is, all of it is padding."""
    lines = max_prefix_lines(size) * LINE_ROWS if shares else 0
    packed = np.zeros((_COLUMNS + shares) * size + lines, np.int32)
    packed[(_COLUMNS + shares) * size :] = -1
    return packed


class _Staging:
    """Pinned host buffers in rotation, so that a queued copy is never overwritten."""

    def __init__(self, target: Tensor) -> None:
        self._target = target
        self._on_device = target.device.type != "cpu"
        self._slots = [
            torch.empty(target.shape, dtype=target.dtype, pin_memory=self._on_device)
            for _ in range(_HOST_SLOTS)
        ]
        self._copied: list[torch.Event | None] = [None] * _HOST_SLOTS
        self._next = 0

    def load(self, packed: Int32Array) -> None:
        """Queue the copy of ``packed`` to the device."""
        slot, self._next = self._next, (self._next + 1) % _HOST_SLOTS
        event = self._copied[slot]
        if event is not None:
            event.synchronize()
        host = self._slots[slot][: packed.size]
        host.numpy()[:] = packed
        self._target[: packed.size].copy_(host, non_blocking=True)
        if self._on_device:
            event = event or torch.Event(self._target.device)
            event.record()
            self._copied[slot] = event
