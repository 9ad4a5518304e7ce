"""A step's result while the device still computes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from xllm.core.messages.worker import Refusal, RowPromptLogprobs, SampledLogprobs, StepResult
from xllm.core.utils.arrays import Int32Array
from xllm.execution.sampling.logprobs import TokenLogprobs
from xllm.execution.sampling.sampler import NOT_FINITE, NOTHING_LEFT, Samples


@dataclasses.dataclass(frozen=True, slots=True)
class PromptPart:
    """Logprobs of prompt tokens ``start ..`` of ``row``."""

    row: int
    start: int
    logprobs: TokenLogprobs


class PendingResult:
    """Fits ``PendingStep``. On a CPU the step is over already; elsewhere its tensors are copied
    to pinned memory behind the computation and an event marks the end of the copies.

    Args:
        refused: rows whose request does not fit the model, with the reason; they fail when they
            would sample.
        stuck: rows whose grammar cannot be followed further, with the reason.
    """

    def __init__(
        self,
        step_id: int,
        rows: np.ndarray,
        samples: Samples,
        prompt_parts: list[PromptPart],
        refused: dict[int, str],
        stuck: Mapping[int, str],
    ) -> None:
        self._step_id = step_id
        self._rows = rows  # (M,)
        self._unfit = dict(refused)
        self._stuck = dict(stuck)
        self._entries, self._counts = samples.logprob_entries, samples.logprob_counts
        device = samples.token_ids.device
        self._tokens = to_host(samples.token_ids)
        self._best_logits = to_host(samples.best_logits)
        self._logprobs = None if samples.logprobs is None else _logprobs_to_host(samples.logprobs)
        self._prompt_parts = [
            PromptPart(part.row, part.start, _logprobs_to_host(part.logprobs))
            for part in prompt_parts
        ]
        self.fetched = False
        self._event: torch.Event | None = None
        if device.type != "cpu":
            self._event = torch.Event(device, enable_timing=True)
            self._event.record()

    @property
    def end(self) -> torch.Event | None:
        """Marks the end of the step on the device; None on a CPU and once the result was read."""
        return None if self.fetched else self._event

    def result(self) -> StepResult:
        """Wait for the step and return what it sampled."""
        if self._event is not None:
            self._event.synchronize()
        self.fetched = True
        failed, refused = self._failures()
        return StepResult(
            step_id=self._step_id,
            token_ids=self._tokens.numpy().astype(np.int32),
            logprobs=self._sampled_logprobs(),
            prompt_logprobs=[
                RowPromptLogprobs(part.row, part.start, *_arrays(part.logprobs))
                for part in self._prompt_parts
            ],
            failed=failed,
            refused=refused,
        )

    def _sampled_logprobs(self) -> SampledLogprobs | None:
        if self._logprobs is None:
            return None
        return SampledLogprobs(
            self._entries.astype(np.int32), self._counts, *_arrays(self._logprobs)
        )

    def _failures(self) -> tuple[dict[int, str], dict[int, Refusal]]:
        """Why rows have no token: faults of the engine's, and what their requests brought about."""
        best = self._best_logits.numpy()
        finite = np.isfinite(best)
        failed: dict[int, str] = {}
        refused: dict[int, Refusal] = {}
        if not finite.all():
            for place in np.flatnonzero(~finite).tolist():
                if best[place] == -np.inf:
                    refused[place] = Refusal(NOTHING_LEFT)
                else:
                    failed[place] = NOT_FINITE
        rows = self._rows.tolist() if self._unfit or self._stuck else []
        for place, row in enumerate(rows):
            if row in self._stuck:
                refused[place] = Refusal(self._stuck[row], "structured_outputs")
            if row in self._unfit:
                refused.pop(place, None)
                failed[place] = self._unfit[row]
        return failed, refused


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that later steps do not overwrite; away from the CPU, queued behind the step."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _logprobs_to_host(found: TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(to_host(found.token_ids), to_host(found.logprobs), to_host(found.ranks))


def _arrays(found: TokenLogprobs) -> tuple[Int32Array, np.ndarray, Int32Array]:
    return found.token_ids.numpy(), found.logprobs.numpy(), found.ranks.numpy()
