"""Repetition, presence and frequency penalties.

Definitions of OpenAI and vLLM: repetition looks at prompt and output, presence and frequency at
the output only. Repetition applies first and divides positive logits, multiplies negative ones.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.request.sampling import SamplingParams
from xllm.core.utils.arrays import Int32Array, Int64Array
from xllm.execution.sampling.step import RowRequest, SamplingStep, as_index
from xllm.execution.transfer import to_device

_MIN_SLOTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Staged:
    """The penalized rows of a step, P of them."""

    entries: torch.Tensor  # (P,) which of the step's rows
    rows: torch.Tensor  # (P,)
    slots: torch.Tensor  # (P,)
    repetition: torch.Tensor  # (P, 1) float32
    presence: torch.Tensor  # (P, 1) float32
    frequency: torch.Tensor  # (P, 1) float32


class Processor:
    """Counts tokens per penalized row on the device.

    Counts live in slots, allotted to penalized rows only: (slots, V) would be 150 MB for 256 rows
    of a 150k vocabulary. They are rebuilt from the row's tokens whenever it starts or resumes.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots = np.full(max_rows, -1, np.int64)
        self._coefficients = np.zeros((3, max_rows), np.float32)
        self._free: list[int] = []
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._version = 0
        self._staged: tuple[int, bytes, _Staged | None] = (-1, b"", None)
        self._step: SamplingStep | None = None
        self.num_rows = 0

    def add_request(self, request: RowRequest) -> None:
        """Count the tokens of a row, if it is penalized."""
        params = request.sampling.params
        if not _penalized(params):
            return
        if not self._free:
            self._grow()
        slot = self._free.pop()
        row = request.row
        self._slots[row] = slot
        self._coefficients[:, row] = (
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        self._count(slot, request.token_ids, request.prompt_len)
        self.num_rows += 1
        self._version += 1

    def remove(self, row: int) -> None:
        """Forget a row and free its slot."""
        slot = int(self._slots[row])
        if slot >= 0:
            self._slots[row] = -1
            self._free.append(slot)
            self.num_rows -= 1
            self._version += 1

    def stage(self, step: SamplingStep) -> bool:
        """Find the penalized rows of the step."""
        self._step = step
        return self._find(step) is not None

    def apply(self, logits: torch.Tensor) -> None:
        """Penalize the staged rows."""
        staged, step = self._staged[2], self._step
        assert staged is not None and step is not None
        # Only tokens that a row holds can be penalized, so nothing else is looked at. The counts
        # decide: a stale id beyond the row's end is penalized only if the row has it elsewhere.
        held = step.token_table[:, : int(step.positions.max())].index_select(0, staged.rows)
        ids = held.long().clamp_(max=self._vocab_size - 1)
        entries, slots = staged.entries.unsqueeze(1), staged.slots.unsqueeze(1)
        part = logits[entries, ids]
        counts = self._counts[slots, ids]
        generated = counts > 0
        seen = self._in_prompt[slots, ids] | generated
        scaled = torch.where(part > 0, part / staged.repetition, part * staged.repetition)
        part = torch.where(seen, scaled, part)
        part -= counts * staged.frequency
        part -= generated * staged.presence
        # A repeated id gets the same value every time.
        logits[entries, ids] = part

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Count the sampled tokens of penalized rows."""
        staged = self._find(step)
        if staged is not None:
            # One token per row and one row per slot: no index repeats.
            self._counts[staged.slots, tokens[staged.entries]] += 1

    def _find(self, step: SamplingStep) -> _Staged | None:
        key = step.rows.tobytes()
        if self._staged[:2] != (self._version, key):
            self._staged = (self._version, key, self._gather(step.rows))
        return self._staged[2]

    def _gather(self, rows: Int64Array) -> _Staged | None:
        slots = self._slots[rows]
        entries = np.flatnonzero(slots >= 0)
        if not entries.size:
            return None
        columns = to_device(self._coefficients[:, rows[entries]], self._device)
        repetition, presence, frequency = columns.unsqueeze(2)
        return _Staged(
            as_index(entries, self._device),
            as_index(rows[entries], self._device),
            as_index(slots[entries], self._device),
            repetition,
            presence,
            frequency,
        )

    def _count(self, slot: int, token_ids: Int32Array, prompt_len: int) -> None:
        """Begin a slot with what its row holds. Its size is the vocabulary's: the host does not
        touch it."""
        in_prompt, counts = self._in_prompt[slot].zero_(), self._counts[slot].zero_()
        prompt, output = token_ids[:prompt_len], token_ids[prompt_len:]
        # Prompt ids beyond the vocabulary that may be sampled have no logit to penalize.
        prompt = prompt[prompt < self._vocab_size]
        in_prompt.index_fill_(0, as_index(prompt, self._device), True)
        if output.size:
            ids, number = np.unique(output, return_counts=True)
            values = to_device(number.astype(np.int32), self._device)
            counts.index_copy_(0, as_index(ids, self._device), values)

    def _grow(self) -> None:
        old = len(self._counts)
        more = max(_MIN_SLOTS, old)
        self._free.extend(range(old + more - 1, old - 1, -1))
        self._in_prompt = torch.cat(
            (self._in_prompt, self._in_prompt.new_zeros(more, self._vocab_size))
        )
        self._counts = torch.cat((self._counts, self._counts.new_zeros(more, self._vocab_size)))


def _penalized(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
