"""What follows a queued forward pass: sampling, and the result. Later for constrained rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xllm.core.messages.worker import StepPlan, StepResult
from xllm.execution.executor.inputs import ModelOutput
from xllm.execution.sampling import Sampler
from xllm.execution.sampling.sampler import StagedStep
from xllm.execution.worker.graph_step import Launched
from xllm.execution.worker.input_builder import StepInputs
from xllm.execution.worker.pending import PendingResult
from xllm.execution.worker.prompt_logprobs import PromptScorer
from xllm.execution.worker.rows import Rows


class DeferredResult:
    """Fits ``PendingStep``: a step whose tokens are chosen after ``execute`` has returned.

    Args:
        finish: samples, and queues the copies to the host.
    """

    def __init__(self, finish: Callable[[], PendingResult]) -> None:
        self._finish: Callable[[], PendingResult] | None = finish
        self._pending: PendingResult | None = None
        self._error: Exception | None = None

    def complete(self) -> None:
        """Sample, if that was not done yet. Never raises: an error is this step's, and ``result``
        tells it."""
        if self._finish is None:
            return
        finish, self._finish = self._finish, None
        try:
            with torch.inference_mode():
                self._pending = finish()
        except Exception as error:
            self._error = error

    @property
    def end(self) -> torch.Event | None:
        """See ``PendingResult.end``; None before ``complete``, too."""
        return None if self._pending is None else self._pending.end

    def result(self) -> StepResult:
        """Wait for the step and return what it sampled.

        Raises:
            Exception: it could not be sampled.
        """
        self.complete()
        if self._error is not None:
            raise self._error
        assert self._pending is not None
        return self._pending.result()


StepOutcome = PendingResult | DeferredResult


class StepFinisher:
    """Samples after the forward pass: at once, or for constrained rows when the loop needs it.

    Their masks need the tokens of the step before, and are filled while the device computes. The
    loop's thread does it, but first hands those tokens out and schedules the step after: ``result``
    of this step or the worker's next ``execute`` finish it, whichever comes first, so that no other
    row waits for masks, and the device only if they take longer than its forward pass.

    Args:
        refused: see ``PendingResult``; the worker keeps it up to date.
    """

    def __init__(
        self, rows: Rows, sampler: Sampler, scorer: PromptScorer, refused: dict[int, str]
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._scorer = scorer
        self._refused = refused
        self._deferred: DeferredResult | None = None

    def settle(self) -> None:
        """Finish what was put off. Call it before rows change or another step is queued."""
        if self._deferred is not None:
            self._deferred.complete()
            self._deferred = None

    def decode(self, plan: StepPlan, launched: Launched) -> StepOutcome:
        """The result of a decode graph."""

        def finish() -> PendingResult:
            samples = launched.sample()
            return PendingResult(
                plan.step_id, plan.rows, samples, [], self._refused, self._sampler.failures
            )

        return self._now_or_later(finish, launched.waits)

    def batch(
        self, plan: StepPlan, inputs: StepInputs, staged: StagedStep, output: ModelOutput
    ) -> StepOutcome:
        """The result of any other step."""

        def finish() -> PendingResult:
            samples = self._sampler.sample(output.logits, staged)
            # Every sampled token goes into its row, where the next step reads it.
            self._rows.token_ids.view(-1)[inputs.write_index] = samples.token_ids.int()
            return PendingResult(
                plan.step_id,
                inputs.sampling.rows,
                samples,
                self._scorer.score(plan, output.hidden),
                self._refused,
                self._sampler.failures,
            )

        return self._now_or_later(finish, staged.waits)

    def _now_or_later(self, finish: Callable[[], PendingResult], waits: bool) -> StepOutcome:
        if not waits:
            return finish()
        self._deferred = DeferredResult(finish)
        return self._deferred
