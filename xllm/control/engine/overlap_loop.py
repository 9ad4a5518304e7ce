"""The overlap loop: the next step is scheduled and queued before the last one's tokens are read."""

from __future__ import annotations

from typing import Any

from xllm.control.engine.lifecycle import EngineLoopBase
from xllm.control.workers import PendingStep
from xllm.core.messages.server import OutputBatch, ToServer
from xllm.core.messages.worker import StepPlan


class OverlapEngineLoop(EngineLoopBase):
    """One step computes while the next is prepared. For devices that compute asynchronously.

    A sampled token reaches the next step on the device; the host sees it one step late. What ends
    a sequence by count is known in advance; what ends it by content costs one dropped result.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending: tuple[StepPlan, PendingStep] | None = None

    def step(self) -> list[ToServer]:
        """Launch the next step if there is one, then commit the one before.

        Raises:
            EngineDeadError: the worker cannot go on.
        """
        with self._stats.timed():
            plan = self._scheduler.schedule()
            launched, failure = None, None
            if plan is not None:
                try:
                    launched = (plan, self._worker.execute(plan))
                except Exception as error:
                    failure = error
            elif self._pending is None:
                self._await_grammars()
            batches = [self._commit_pending()]
            if plan is not None and failure is not None:
                batches.append(self._fail_step(plan, failure))
            self._pending = launched
            return self._messages(*batches)

    def _commit_pending(self) -> OutputBatch | None:
        if self._pending is None:
            return self._scheduler.flush()
        plan, pending = self._pending
        try:
            result = pending.result()
        except Exception as error:
            return self._fail_step(plan, error)
        return self._scheduler.commit(plan, result)
