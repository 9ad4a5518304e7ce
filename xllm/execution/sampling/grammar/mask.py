"""The sampling rule that bans every token a row's grammar does not allow.

The order of things within a step matters: the device computes the forward pass, already queued,
while the host waits for the step before, lets the matchers take its tokens and fills the masks of
this one. ``apply`` does all of that, so it is called after the forward pass was queued (by a worker
that has no better use for the loop's thread: see ``DeferredResult``), and after every other rule,
whose kernels then need not wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from xllm.core.grammar import GrammarCache, MaskFiller
from xllm.core.grammar.compiler import explain
from xllm.core.grammar.masks import TOKENS_PER_WORD
from xllm.core.utils.arrays import BoolArray, Int32Array, Int64Array
from xllm.execution.sampling.grammar.minimum import Minimum
from xllm.execution.sampling.grammar.row import GrammarRow
from xllm.execution.sampling.step import RowRequest, SamplingStep, as_index
from xllm.hardware.kernels import ops

_STUCK = "structured_outputs cannot be followed further: "


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """The constrained rows of a step."""

    entries: torch.Tensor  # (C,) int64 on the device, which of the step's rows
    row_ids: list[int]
    rows: list[GrammarRow]
    places: Int64Array  # (C,) ``entries`` on the host
    minimums: Int64Array | None  # (C,) ``min_tokens``, 0 without; None: all are


@dataclasses.dataclass(frozen=True, slots=True)
class _Sampled:
    """Tokens on their way from the device."""

    rows: Sequence[GrammarRow]
    tokens: torch.Tensor  # (C,) int64 on the host, once ``copied``
    copied: torch.Event | None


class GrammarMask:
    """Fits ``LogitsProcessor``. Rows of it come and go like those of every other rule.

    Args:
        grammars: where the grammars of rows are, compiled before the rows start.

    Attributes:
        failures: why rows cannot go on; such a row has no token left to sample.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, device: torch.device, grammars: GrammarCache
    ) -> None:
        self._grammars = grammars
        self._device = device
        self._rows: dict[int, GrammarRow] = {}
        self._used: BoolArray = np.zeros(max_rows, np.bool_)
        self._version = 0
        self._batch: tuple[int, bytes, _Batch | None] = (-1, b"", None)
        self._short: list[int] = []  # rows of the batch that must not end yet, by their place in it
        self._sampled: _Sampled | None = None
        self._num_steps = 0
        self._filler: MaskFiller | None = None
        self._vocab_size = vocab_size
        num_words = -(-vocab_size // TOKENS_PER_WORD)
        self._mask_shape = (max_rows, num_words)
        # Free to be overwritten by the time a step gets to fill it: the copy of the step before
        # precedes, on the device, the tokens that this step has waited for.
        self._host_masks: torch.Tensor | None = None
        self._end_only: Int32Array = np.zeros(num_words, np.int32)
        self.failures: dict[int, str] = {}

    @property
    def num_rows(self) -> int:
        """Rows that have a grammar."""
        return len(self._rows)

    def blank_masks(self, num_rows: int) -> torch.Tensor:
        """(num_rows, W) masks on the device that allow nothing."""
        shape = (num_rows, self._mask_shape[1])
        return torch.zeros(shape, dtype=torch.int32, device=self._device)

    def add_request(self, request: RowRequest) -> None:
        """Take over a row's grammar, if it has one, and replay what it sampled before.

        Raises:
            ValueError: the grammar cannot be used.
        """
        output = request.sampling.structured_output
        if output is None:
            return
        # Done already: whoever let the row start has waited for it.
        grammar = self._grammars.submit(output).future.result()
        if self._filler is None:
            self._begin(grammar.vocabulary.eos_token_ids)
        row = GrammarRow(output, grammar, self._num_steps)
        row.replay(request.token_ids[request.prompt_len :].tolist())
        minimum = request.sampling.params.min_tokens
        # A row without a grammar may go on for ever: its bans are those of any other row.
        if not row.free and len(request.token_ids) - request.prompt_len < minimum:
            banned = request.sampling.suppress_token_ids
            row.minimum = Minimum(minimum, banned, self._vocab_size)
        self._rows[request.row] = row
        self._used[request.row] = True
        self._version += 1

    def remove(self, row: int) -> None:
        """Forget a row."""
        gone = self._rows.pop(row, None)
        if gone is not None:
            # Each step may have been one token of it: counting them one by one is not free.
            gone.grammar.num_tokens += self._num_steps - gone.first_step
            if gone.failure is not None:
                gone.grammar.wear_out()
            self._used[row] = False
            self._version += 1
            self.failures.pop(row, None)

    def stage(self, step: SamplingStep) -> bool:
        """Find the step's constrained rows."""
        key = step.rows.tobytes()
        if self._batch[:2] != (self._version, key):
            self._batch = (self._version, key, self._collect(step.rows))
        batch = self._batch[2]
        self._short = []
        if batch is not None and batch.minimums is not None:
            short = step.output_lens[batch.places] < batch.minimums
            self._short = np.flatnonzero(short).tolist()
        return batch is not None

    def apply(self, logits: torch.Tensor) -> None:
        """Set the logits of what the grammars do not allow to -inf; waits for the step before."""
        batch = self._batch[2]
        assert batch is not None
        self._advance()
        masks = self._fill(batch).to(self._device, non_blocking=True)
        ops.mask_logits(logits, batch.entries, masks)

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Have the sampled tokens of constrained rows copied to where ``apply`` finds them."""
        batch = self._batch[2]
        if batch is None:
            return
        chosen = tokens[batch.entries]
        copied = None
        if self._device.type != "cpu":
            host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=True)
            chosen = host.copy_(chosen, non_blocking=True)
            copied = torch.Event(self._device)
            copied.record()
        self._sampled = _Sampled(batch.rows, chosen, copied)

    def _begin(self, eos_token_ids: Sequence[int]) -> None:
        self._filler = MaskFiller()
        on_device = self._device.type != "cpu"
        self._host_masks = torch.zeros(self._mask_shape, dtype=torch.int32, pin_memory=on_device)
        allowed = self._end_only.view(np.uint32)
        for token in eos_token_ids:
            allowed[token // TOKENS_PER_WORD] |= np.uint32(1 << (token % TOKENS_PER_WORD))

    def _collect(self, rows: Int64Array) -> _Batch | None:
        entries = np.flatnonzero(self._used[rows])
        if not entries.size:
            return None
        # Matchers that exclude each other stand together: see ``MaskFiller``.
        lanes = [self._rows[row].lane for row in rows[entries].tolist()]
        entries = entries[np.argsort(lanes, kind="stable")]
        row_ids = rows[entries].tolist()
        batch_rows = [self._rows[row] for row in row_ids]
        minimums = None
        if any(row.minimum is not None for row in batch_rows):
            minimums = np.array(
                [row.minimum.num_tokens if row.minimum else 0 for row in batch_rows]
            )
        return _Batch(as_index(entries, self._device), row_ids, batch_rows, entries, minimums)

    def _advance(self) -> None:
        """Let the rows take what the step before sampled; a row that left meanwhile does not mind.

        A row that ended or failed keeps its state: what is sampled for it is dropped.
        """
        sampled, self._sampled = self._sampled, None
        if sampled is None:
            return
        self._num_steps += 1
        if sampled.copied is not None:
            sampled.copied.synchronize()
        steps, takers = [], []
        for row, token in zip(sampled.rows, sampled.tokens.tolist(), strict=True):
            if row.ended or row.failure is not None:
                continue
            if token in row.eos_token_ids and not row.free:
                row.ended = True
            elif row.begun and row.free:
                continue
            elif row.begun:
                steps.append((row.matcher, token))
                takers.append(row)
            else:
                row.skip(token)
        assert self._filler is not None
        for row, taken in zip(takers, self._filler.advance(steps), strict=True):
            if not taken:
                row.failure = _STUCK + explain(row.matcher)

    def _fill(self, batch: _Batch) -> torch.Tensor:
        """(C, W) masks of the batch, on the host, overwritten by the next ones."""
        assert self._filler is not None and self._host_masks is not None
        count = len(batch.rows)
        tensor = self._host_masks[:count]
        masks = tensor.numpy()
        asked, places = [], []
        for place, row in enumerate(batch.rows):
            if row.free:
                masks[place] = -1
                if row.begun:  # nothing is left to watch
                    self._used[batch.row_ids[place]] = False
                    self._version += 1
            elif row.begun and not row.ended and row.failure is None:
                asked.append((row.matcher, place))
                places.append(place)
            elif row.ended:
                masks[place] = self._end_only  # its result is dropped
            elif row.failure is None:
                masks[place] = ~self._end_only
            if (token := row.forced) is not None:
                masks[place] = 0
                masks[place].view(np.uint32)[token // TOKENS_PER_WORD] = (
                    1 << token % TOKENS_PER_WORD
                )
        for place, problem in zip(places, self._filler.fill(asked, masks), strict=True):
            if problem is not None:
                batch.rows[place].failure = _STUCK + problem
        for place in self._short:
            minimum = batch.rows[place].minimum
            assert minimum is not None
            minimum.hold(masks[place], self._end_only)
        for place, row in enumerate(batch.rows):
            if row.failure is not None:
                masks[place] = 0
                self.failures[batch.row_ids[place]] = row.failure
        return tensor
