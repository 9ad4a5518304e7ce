"""Decode steps as device graphs: expansion, model, logits, sampling and token feedback in one.

The host packs what it knows of each row into pinned memory, queues one copy and one replay, and
never waits: the sampled tokens are in the device's rows when the next step's graph reads them.
A batch runs in the smallest captured bucket that holds it; the rest of the bucket is padding, which
has length 0, writes no cache slot and no token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from xllm.execution.executor.runners.decode_memory import (
    DecodeMemory,
    DecodeRows,
    DeviceTables,
    Staging,
    empty_step,
    pack_step,
)
from xllm.hardware.graphs import Graph, GraphApi
from xllm.hardware.kernels import ops
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.attention import AttentionBackend, AttentionMetadata, ForwardContext
from xllm.modeling.models.decoder import CausalLM

_FINE_FROM = 128
_FEWEST_SHARING = 16  # smallest bucket with a graph for rows that share a prefix


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeOutput:
    """Views of the graph's own memory. Borrowed: queue their use before the next replay."""

    tokens: Tensor  # (S,) int32
    best_logits: Tensor  # (S,) float32
    logits: Tensor  # (S, V) in the head's dtype
    write_index: Tensor  # (S,) int64 into the flat token table


def buckets(max_rows: int) -> list[int]:
    """Batch sizes to capture, ascending: 1, 2, 4, 8, then two per doubling, three from 128, and
    ``max_rows``.

    On an H200 the products of an 8B model take 132 µs a layer for 160 rows, 154 for 192; below 128
    rows, and from 192 to 256, more sizes would gain nothing.
    """
    sizes = {1, 2, 4, 8, 12}
    size = 16
    while size <= max_rows:
        sizes |= {size, size + size // 2}
        if size >= _FINE_FROM:
            sizes.add(size + size // 4)
        size *= 2
    return sorted({s for s in sizes if s < max_rows} | {max_rows})


def prefix_buckets(decode_buckets: Sequence[int]) -> list[int]:
    """Batch sizes to capture with a shared prefix: powers of two from 16, and the largest."""
    largest = decode_buckets[-1]
    if largest < _FEWEST_SHARING:
        return []
    powers = {s for s in decode_buckets if s >= _FEWEST_SHARING and s & (s - 1) == 0}
    return sorted(powers | {largest})


class FullGraphRunner:
    """Replays decode steps. Holds the inputs and outputs that its graphs were captured with.

    ``num_replays`` counts the steps it ran.
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
        self._rehearsed: set[tuple[int, bool]] = set()
        self._graphs: dict[tuple[int, bool], Graph] = {}
        self._memory = DecodeMemory.allocate(tables, self._buckets[-1])
        self._staging = Staging(self._memory.packed)
        self.num_replays = 0

    def rehearsals(self) -> list[Callable[[], DecodeOutput]]:
        """Work that launches every kernel of the graphs, which differ by the number of rows: first
        that of most rows. It may be called with kernels that are loaded instead of launched."""
        return [functools.partial(self._rehearse, *size) for size in self._sizes()]

    def capture(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Capture every bucket, the largest first, so that the others fit into its memory.

        On demand, capture one row, to see whether the model can be captured at all.

        Raises:
            CaptureError: it cannot.
        """
        wanted = [(1, False)] if self._api.on_demand else self._sizes()
        for number, (size, shares) in enumerate(wanted):
            self._staging.load(empty_step(size, len(self._tables.block_tables), shares))
            work = functools.partial(self._decode, size, shares)
            if not self._api.on_demand and (size, shares) not in self._rehearsed:
                self._rehearse(size, shares)
            self._graphs[size, shares] = self._api.capture(work)
            if progress is not None:
                progress(number + 1, len(wanted))

    def _rehearse(self, size: int, shares: bool) -> DecodeOutput:
        """Outside capture: loads kernels and sets libraries up, once for all layers."""
        output = self._decode(size, shares, rehearsal=True)
        self._rehearsed.add((size, shares))
        return output

    def _sizes(self) -> list[tuple[int, bool]]:
        """Of every graph the rows, and whether they share prefixes; the largest first."""
        sizes = [(size, False) for size in self._buckets]
        sizes += [(size, True) for size in self._prefix_buckets]
        return sorted(sizes, reverse=True)

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
        self._staging.load(pack_step(step, size))
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
        return DecodeOutput(
            output.tokens[:count],
            output.best_logits[:count],
            output.logits[:count],
            output.write_index[:count],
        )

    def _decode(self, size: int, shares: bool, *, rehearsal: bool = False) -> DecodeOutput:
        """What a graph of ``size`` rows records, with shared prefixes or without; or its
        rehearsal."""
        memory = self._memory
        columns = memory.columns(size)
        rows, seq_lens, temperature, _, _, *new_blocks = columns
        input_ids, positions = memory.input_ids[:size], memory.positions[:size]
        write_index = memory.write_index[:size]
        prefix = memory.shared_prefix(size) if shares else None
        metadata = []
        for group, block_size in enumerate(self._tables.block_sizes):
            slots, blocks = memory.slots[group][:size], memory.blocks[group][:size]
            ops.expand_decode(
                rows,
                seq_lens,
                self._tables.token_ids,
                self._tables.block_tables[group],
                block_size,
                new_blocks[group],
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
                    prefix=prefix if group == self._tables.prefix_group else None,
                )
            )
        context = ForwardContext(
            tuple(metadata), self._kv_caches, self._group_of_layer, self._backend
        )
        forward = self._model.rehearse if rehearsal else self._model
        hidden = forward(input_ids, positions, context)
        logits = self._model.compute_narrow_logits(hidden)
        tokens, best = memory.tokens[:size], memory.best_logits[:size]
        ops.sample_tokens(
            logits,
            temperature.view(torch.float32),
            columns[3:5],
            tokens,
            best,
            self._tables.token_ids,
            write_index,
        )
        return DecodeOutput(tokens, best, logits, write_index)
