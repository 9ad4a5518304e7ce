"""What the pipeline asks of a sampling rule, and the ragged table most rules keep."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import torch

from xllm.core.utils.arrays import BoolArray, Int64Array
from xllm.execution.sampling.step import RowRequest, SamplingStep, as_index
from xllm.execution.transfer import to_device


class LogitsProcessor(Protocol):
    """One sampling rule. ``num_rows`` rows use it; at 0 the pipeline skips it."""

    @property
    def num_rows(self) -> int:
        """Rows that use the rule."""
        ...

    def add_request(self, request: RowRequest) -> None:
        """Take over a row that starts or resumes; rows that do not use the rule cost nothing.

        Raises:
            ValueError: the row's parameters do not fit the model.
        """

    def remove(self, row: int) -> None:
        """Forget a row."""

    def stage(self, step: SamplingStep) -> bool:
        """Prepare the step before its logits exist; False when none of its rows is affected."""

    def apply(self, logits: torch.Tensor) -> None:
        """Edit the logits (M, V) float32 of the staged step in place."""

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Learn the tokens (M,) int64 that a step's rows sampled."""


@dataclasses.dataclass(frozen=True, slots=True)
class FlatEntries:
    """Token ids of several rows, one after the other."""

    rows: torch.Tensor  # (E,) int64, which of the step's rows
    token_ids: torch.Tensor  # (E,) int64
    values: torch.Tensor  # (E,) float32
    step_rows: torch.Tensor  # (R,) int64, the distinct ``rows``


class RaggedTable:
    """Token ids and values per row, flattened for the rows of a step.

    The flat form is kept until the batch or the table changes, so a steady step gathers nothing.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._ids: dict[int, Int64Array] = {}
        self._values: dict[int, np.ndarray] = {}
        self._used: BoolArray = np.zeros(max_rows, np.bool_)
        self._version = 0
        self._flat: tuple[int, bytes, bytes, FlatEntries | None] = (-1, b"", b"", None)

    def __len__(self) -> int:
        return len(self._ids)

    def set(self, row: int, ids: list[int], values: list[float] | None = None) -> None:
        """Store the ids (not empty, without repeats) of a row.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        array = np.array(ids, np.int64)
        if array.min() < 0 or array.max() >= self._vocab_size:
            raise ValueError(f"token ids must be below the vocabulary size {self._vocab_size}")
        self._ids[row] = array
        self._values[row] = np.array(values or [0.0] * len(ids), np.float32)
        self._used[row] = True
        self._version += 1

    def remove(self, row: int) -> None:
        """Forget a row, known or not."""
        if self._ids.pop(row, None) is not None:
            del self._values[row]
            self._used[row] = False
            self._version += 1

    def gather(self, step: SamplingStep, active: BoolArray | None = None) -> FlatEntries | None:
        """The entries of the step's rows, or None when there are none.

        Args:
            step: the sampling rows.
            active: (M,) rows to consider; all by default.
        """
        used = self._used[step.rows]
        if active is not None:
            used &= active
        if not used.any():
            return None
        rows_key, used_key = step.rows.tobytes(), used.tobytes()
        if self._flat[:3] != (self._version, rows_key, used_key):
            flat = self._flatten(step.rows, np.flatnonzero(used))
            self._flat = (self._version, rows_key, used_key, flat)
        return self._flat[3]

    def _flatten(self, rows: Int64Array, entries: Int64Array) -> FlatEntries:
        ids = [self._ids[row] for row in rows[entries].tolist()]
        values = [self._values[row] for row in rows[entries].tolist()]
        repeated = np.repeat(entries, [len(i) for i in ids])
        return FlatEntries(
            as_index(repeated, self._device),
            as_index(np.concatenate(ids), self._device),
            to_device(np.concatenate(values), self._device),
            as_index(entries, self._device),
        )


class SparseProcessor:
    """Base of the rules whose per-row state is one ragged table."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._table = RaggedTable(max_rows, vocab_size, device)
        self._entries: FlatEntries | None = None

    @property
    def num_rows(self) -> int:
        """Rows that use the rule."""
        return len(self._table)

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._table.remove(row)

    def stage(self, step: SamplingStep) -> bool:
        """Find the step's entries."""
        self._entries = self._table.gather(step)
        return self._entries is not None

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Sampled tokens change nothing here."""
