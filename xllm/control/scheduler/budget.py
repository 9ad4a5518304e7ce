"""The step being drafted: what it takes from the token budget, and what it will compute."""

from __future__ import annotations

import dataclasses

import numpy as np

from xllm.control.scheduler.sequence import Sequence
from xllm.control.scheduler.table import Rows
from xllm.core.utils.arrays import Int32Array

_NO_ROWS: Rows = np.zeros(0, np.intp)
_NO_TOKENS: Int32Array = np.zeros(0, np.int32)


class TokenBudget:
    """Tokens that one step may compute."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.left = total

    def take(self, count: int) -> None:
        """Spend ``count`` tokens."""
        assert 0 <= count <= self.left, "a step exceeds its token budget"
        self.left -= count

    def give_back(self, count: int) -> None:
        """Undo a ``take``."""
        self.left += count
        assert self.left <= self.total


@dataclasses.dataclass(slots=True)
class StepDraft:
    """Collected by the phases of one ``schedule``; rows change only when the step is launched,
    so that a sequence can be taken out again until then.

    ``decode_rows[i]`` computes the token at ``decode_known[i] - 1``.
    """

    budget: TokenBudget
    decode_rows: Rows = dataclasses.field(default_factory=lambda: _NO_ROWS)
    decode_known: Int32Array = dataclasses.field(default_factory=lambda: _NO_TOKENS)
    chunks: dict[Sequence, int] = dataclasses.field(default_factory=dict)  # -> tokens
    started: list[Sequence] = dataclasses.field(default_factory=list)
    has_preempted: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be computed."""
        return not self.chunks and self.decode_rows.size == 0

    def decode(self, rows: Rows, known: Int32Array) -> None:
        """Take one token for each row."""
        self.budget.take(rows.size)
        self.decode_rows, self.decode_known = rows, known

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """Take the next ``num_tokens`` of a prompt."""
        self.budget.take(num_tokens)
        self.chunks[sequence] = num_tokens

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out again, and give its tokens back."""
        self.budget.give_back(self.chunks.pop(sequence, 0))
        if sequence in self.started:
            self.started.remove(sequence)
        keep = self.decode_rows != sequence.row
        if not keep.all():
            self.budget.give_back(1)
            self.decode_rows, self.decode_known = self.decode_rows[keep], self.decode_known[keep]
