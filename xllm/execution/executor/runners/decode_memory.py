"""A decode step's rows: as the host knows them, as they are sent, and where graphs find them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from xllm.core.messages.worker import MAX_SHARED_PREFIXES
from xllm.core.utils.arrays import Float32Array, Int32Array
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, SharedPrefix

# Rows, seq_lens, inverse temperature (as bits), two random keys; then new blocks, one per group.
_COLUMNS = 5
# Columns begin at multiples of 16 bytes: Triton compiles a kernel apart for pointers that do not.
_UNIT = 4
# Copies in flight: one step runs, one is queued; a slot is free again when its copy is over.
_HOST_SLOTS = 4


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
    new_blocks: Int32Array  # (G, S) per cache group, see ``ops.expand_decode``
    prefix: PrefixRows | None = None  # only where the runner ``reads_prefixes``


def max_prefix_lines(num_rows: int) -> int:
    """Lines that ``PrefixRows`` of that many rows need at most."""
    return -(-num_rows // LINE_ROWS) + MAX_SHARED_PREFIXES - 1


def empty_step(size: int, num_groups: int, shares: bool) -> Int32Array:
    """Room for a step of ``size`` rows: their columns, and with shared prefixes one more of their
    lengths and the lines of their members. As it is, all of it is padding."""
    end = (_COLUMNS + num_groups + shares) * _height(size)
    lines = max_prefix_lines(size) * LINE_ROWS if shares else 0
    packed = np.zeros(end + lines, np.int32)
    packed[end:] = -1
    return packed


def pack_step(step: DecodeRows, size: int) -> Int32Array:
    """``step`` as it is sent, padded to ``size`` rows."""
    count = len(step.rows)
    num_groups = len(step.new_blocks)
    packed = empty_step(size, num_groups, step.prefix is not None)
    height = _height(size)
    end = (_COLUMNS + num_groups) * height
    columns = packed[:end].reshape(-1, height)
    columns[0, :count] = step.rows
    columns[1, :count] = step.seq_lens
    if step.inverse_temperature is not None:
        assert step.keys is not None
        columns[2, :count] = step.inverse_temperature.view(np.int32)
        columns[3:_COLUMNS, :count] = step.keys
    columns[_COLUMNS:, :count] = step.new_blocks
    if step.prefix is not None:
        tail = packed[end:]
        tail[:count] = step.prefix.lens
        tail[height : height + step.prefix.members.size] = step.prefix.members.ravel()
    return packed


def _height(size: int) -> int:
    """Numbers of a column for that many rows."""
    return -(-size // _UNIT) * _UNIT


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeMemory:
    """The tensors at whose addresses the graphs read and write, sized for the largest bucket."""

    packed: Tensor  # int32, as ``empty_step``: what the host sends
    input_ids: Tensor  # (S,) int32
    positions: Tensor  # (S,) int64
    write_index: Tensor  # (S,) int64
    query_start_loc: Tensor  # (S + 1,) int32: 0, 1, 2, ...
    slots: list[Tensor]  # (S,) int64 per group
    blocks: list[Tensor]  # (S, B) int32 per group
    tokens: Tensor  # (S,) int32
    best_logits: Tensor  # (S,) float32

    @classmethod
    def allocate(cls, tables: DeviceTables, size: int) -> DecodeMemory:
        device = tables.token_ids.device

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            packed=zeros(empty_step(size, len(tables.block_tables), True).size),
            input_ids=zeros(size),
            positions=zeros(size, dtype=torch.int64),
            write_index=zeros(size, dtype=torch.int64),
            query_start_loc=torch.arange(size + 1, dtype=torch.int32, device=device),
            slots=[zeros(size, dtype=torch.int64) for _ in tables.block_tables],
            blocks=[zeros(size, table.shape[1]) for table in tables.block_tables],
            tokens=zeros(size),
            best_logits=zeros(size, dtype=torch.float32),
        )

    def columns(self, size: int) -> Tensor:
        """(5 + groups, size) int32: what was sent of each row."""
        height = _height(size)
        return self.packed[: self._num_columns * height].view(-1, height)[:, :size]

    def shared_prefix(self, size: int) -> SharedPrefix:
        """What was sent of shared prefixes."""
        start = self._num_columns * _height(size)
        end = start + _height(size)
        members = self.packed[end : end + max_prefix_lines(size) * LINE_ROWS]
        return SharedPrefix(self.packed[start : start + size], members.view(-1, LINE_ROWS))

    @property
    def _num_columns(self) -> int:
        return _COLUMNS + len(self.slots)


class Staging:
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
