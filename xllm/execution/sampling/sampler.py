"""From logits to tokens for the rows of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from xllm.core.grammar import GrammarCache
from xllm.core.utils.arrays import Int32Array, Int64Array
from xllm.execution.sampling.grammar import GrammarMask
from xllm.execution.sampling.logprobs import TokenLogprobs, token_logprobs
from xllm.execution.sampling.pipeline import Pipeline
from xllm.execution.sampling.processors._base import LogitsProcessor
from xllm.execution.sampling.step import RowRequest, SamplingStep, as_index
from xllm.execution.sampling.table import Filters, PlainDraws, SamplingTable
from xllm.execution.transfer import to_device
from xllm.hardware.kernels import ops


@dataclasses.dataclass(frozen=True, slots=True)
class StagedStep:
    """A step prepared on the host before its logits exist."""

    step: SamplingStep
    processors: list[LogitsProcessor]
    filters: Filters | None  # None: every row is greedy
    keys: torch.Tensor | None  # (2, M) int32 where rows draw
    logprob_entries: Int64Array  # (L,) rows that return logprobs
    logprob_counts: Int32Array  # (L,) alternatives each of them asked for
    waits: bool  # for the tokens of the step before: it has rows with a grammar
    widens: bool  # logits to float32, which masks and choosing tokens do without


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """What a step sampled, on the device."""

    token_ids: torch.Tensor  # (M,) int64
    best_logits: torch.Tensor  # (M,) largest processed logit: not finite = the row failed
    logprob_entries: Int64Array  # (L,)
    logprob_counts: Int32Array  # (L,)
    logprobs: TokenLogprobs | None


# Why a row has no token: its largest logit is -inf, or not a number.
NOTHING_LEFT = (
    "no token is left to sample: structured_outputs, allowed_token_ids, bad_words and min_tokens "
    "ban them all"
)
NOT_FINITE = "the model's logits for this sequence are not finite"


class Sampler:
    """Samples on the device; a row's token depends on its own logits, tokens and seed only.

    Args:
        max_rows: rows of the persistent tables.
        vocab_size: tokens that may be sampled; logits beyond are padding.
        device: where logits live.
        grammars: of constrained rows; without them such rows are refused.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarCache | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self.table = SamplingTable(max_rows, vocab_size, device)
        self._grammar: GrammarMask | None = None
        if grammars is not None:
            self._grammar = GrammarMask(max_rows, vocab_size, device, grammars)
        last = () if self._grammar is None else (self._grammar,)
        self._pipeline = Pipeline(max_rows, vocab_size, device, last)

    def add_request(self, request: RowRequest) -> None:
        """Take over a row that starts or resumes.

        Raises:
            ValueError: a parameter does not fit the model; the row samples without it.
        """
        self.table.set(request.row, request.sampling.params, request.sampling.seed)
        self._pipeline.add_request(request)
        if request.sampling.structured_output is not None and self._grammar is None:
            raise ValueError("structured_outputs is not supported by this engine")

    @property
    def failures(self) -> Mapping[int, str]:
        """Rows whose grammar cannot be followed any further, with the reason."""
        return {} if self._grammar is None else self._grammar.failures

    def remove(self, row: int) -> None:
        """Forget a freed row's state."""
        self._pipeline.remove(row)

    def stage(self, step: SamplingStep) -> StagedStep:
        """Prepare a step; needs no logits, so it overlaps with the model on a device."""
        filters = self.table.filters(step.rows)
        keys = None
        if filters is not None:
            keys = to_device(self.table.keys(step), self._device)
        counts = self.table.logprobs[step.rows]
        asking = np.flatnonzero(counts >= 0)
        processors = self._pipeline.stage(step)
        waits = self._grammar in processors
        widens = len(processors) > waits or asking.size > 0 or self._device.type == "cpu"
        return StagedStep(step, processors, filters, keys, asking, counts[asking], waits, widens)

    def rehearse(self, logits: torch.Tensor) -> None:
        """Launch the kernels that no graph contains on a decode step's logits (M, V'), which are
        overwritten: the first row that needs one shall not wait for it to be compiled or loaded."""
        logits = logits[:, : self._vocab_size]
        rows = torch.arange(len(logits), device=self._device)
        if self._grammar is not None:
            ops.mask_logits(logits, rows, self._grammar.blank_masks(len(logits)))
        # As they are, as ``StagedStep.widens`` asks, and that of one row, which keeps its stride.
        # Whatever else choosing is told, it launches the same kernels.
        one = logits[:1].float()
        for some in (logits, logits.float(), one):
            ops.choose_tokens(some)
        token_logprobs(one, rows[:1], 1)  # loads torch's kernels: 70 to 130 ms

    def plain_draws(self, step: SamplingStep) -> PlainDraws | None:
        """The step's draws if it needs nothing but Gumbel-max, which graphs contain, else None."""
        return self.table.plain_draws(step) if self._pipeline.idle else None

    def sample(self, logits: torch.Tensor, staged: StagedStep) -> Samples:
        """Sample one token per row.

        Args:
            logits: (M, V') of any float type, V' at least ``vocab_size``; may be overwritten.
            staged: the step these logits belong to.
        """
        logits = logits[:, : self._vocab_size]
        if staged.widens:
            logits = logits.float()
        raw = None
        if staged.logprob_entries.size:
            raw = logits[as_index(staged.logprob_entries, self._device)]
        for processor in staged.processors:
            processor.apply(logits)
        tokens, best = _choose(logits, staged.filters, staged.keys)
        self._pipeline.accept(staged.step, tokens)
        logprobs = None
        if raw is not None:
            chosen = tokens[as_index(staged.logprob_entries, self._device)]
            logprobs = token_logprobs(raw, chosen, int(staged.logprob_counts.max()))
        return Samples(tokens, best, staged.logprob_entries, staged.logprob_counts, logprobs)


def _choose(
    logits: torch.Tensor, filters: Filters | None, keys: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if filters is None:
        return ops.choose_tokens(logits)
    return ops.choose_tokens(
        logits,
        filters.inverse_temperature,
        filters.log_min_p,
        filters.top_k,
        filters.top_p,
        keys,
    )
