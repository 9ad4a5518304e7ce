"""After a step that raised: finding the sequence that makes steps raise, so that it fails alone."""

from __future__ import annotations

from xllm.control.scheduler.admission import Admission
from xllm.control.scheduler.budget import StepDraft
from xllm.control.scheduler.preemption import Preemption
from xllm.control.scheduler.sequence import Sequence, Status
from xllm.control.scheduler.state import SchedulerState


class Isolation:
    """Tries suspects one by one, each alone in its steps, while everything else waits.

    Suspects stand first in the queue. One has passed when the step that samples its next token has
    been committed; it then goes on with the others. A step of one sequence that raises convicts
    it. The next is called only when nothing is in flight, so that the verdict is about it.
    """

    def __init__(self, state: SchedulerState, admission: Admission, preemption: Preemption) -> None:
        self._state = state
        self._admission = admission
        self._preemption = preemption
        self._trial: Sequence | None = None  # has a row

    @property
    def active(self) -> bool:
        """Whether somebody is or will be tried."""
        self._end_trial()
        if self._trial is not None:
            return True
        first = self._state.queue.peek()
        return first is not None and first.suspect

    def draft(self, draft: StepDraft) -> None:
        """Let the one on trial compute, or call the next once nothing is in flight."""
        state = self._state
        if self._trial is None and not state.in_flight:
            self._call_next(draft)
        elif self._trial in state.prefilling:
            self._preemption.add_chunk(draft, self._trial)

    def _call_next(self, draft: StepDraft) -> None:
        suspect = self._state.queue.peek()
        assert suspect is not None and suspect.suspect
        if not self._admission.start_alone(suspect, draft):
            # It fits alone: that was checked when it arrived.
            for row in self._state.table.preemptible().tolist():
                sequence = self._state.table.sequences[row]
                assert sequence is not None
                self._preemption.preempt(draft, sequence)
            draft.has_preempted = False
            started = self._admission.start_alone(suspect, draft)
            assert started, "a sequence does not fit into an empty cache"
        self._trial = suspect

    def _end_trial(self) -> None:
        trial, table = self._trial, self._state.table
        if trial is None:
            return
        if trial.status is not Status.RUNNING:
            self._trial = None  # it ended, was convicted, or waits for another trial
        elif table.decoding[trial.row] and not table.in_flight[trial.row]:
            trial.suspect = False
            self._trial = None
