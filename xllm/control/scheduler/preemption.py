"""Making room for running sequences when blocks are short: preemption by recompute."""

from __future__ import annotations

from xllm.control.scheduler.budget import StepDraft
from xllm.control.scheduler.sequence import Sequence
from xllm.control.scheduler.state import SchedulerState
from xllm.control.scheduler.table import Rows
from xllm.core.utils.arrays import Int32Array


class Preemption:
    """Takes rows away from the last in order so that the first in order go on.

    The first running sequence is never preempted, and alone it always fits: something always
    advances. A victim's blocks are usable once the steps that use them have been committed, so a
    row may have to sit out a step until then.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def extend_decodes(
        self, draft: StepDraft, rows: Rows, known: Int32Array
    ) -> tuple[Rows, Int32Array]:
        """Give every decoding row a slot for its next token, preempting as needed.

        Args:
            rows: rows in order.
            known: their known tokens; the slot is for position ``known - 1``.

        Returns:
            The rows that go on in this step, all extended, and their known tokens.
        """
        blocks = self._state.blocks
        while rows.size and not blocks.extend_decodes(rows, known - 1):
            pending = self._state.pending_blocks()
            short = blocks.shortage(rows, known - 1)
            victim = self._last_in_order()
            enough = all(lack <= soon for lack, soon in zip(short, pending, strict=True))
            if enough or victim is None:
                keep = blocks.affordable(rows, known - 1)
            else:
                keep = rows != victim.row
                self.preempt(draft, victim)
            rows, known = rows[keep], known[keep]
        return rows, known

    def add_chunk(self, draft: StepDraft, sequence: Sequence) -> None:
        """Draft as much of a partly computed prompt as budget and blocks allow.

        Only the first sequence in order preempts for its prompt; others wait for free blocks.
        """
        state = self._state
        computed = int(state.table.num_computed[sequence.row])
        remaining = int(state.table.num_known[sequence.row]) - computed
        while True:
            room = state.blocks.extendable_tokens(sequence.row) - computed
            if room > 0:
                break
            order = state.table.preemptible()
            victim = self._last_in_order()
            if victim is None or order[0] != sequence.row or any(state.pending_blocks()):
                return
            self.preempt(draft, victim)
        num_tokens = min(remaining, room, draft.budget.left)
        state.blocks.extend(sequence.row, computed + num_tokens)
        draft.add_chunk(sequence, num_tokens)

    def preempt(self, draft: StepDraft, sequence: Sequence) -> None:
        """Take a sequence out of the draft and off its row; see ``SchedulerState.requeue``."""
        draft.drop(sequence)
        draft.has_preempted = True
        self._state.requeue(sequence)
        self._state.counters.num_preemptions += 1

    def _last_in_order(self) -> Sequence | None:
        """The next victim; None when one sequence or none is left."""
        order = self._state.table.preemptible()
        if order.size < 2:
            return None
        return self._state.table.sequences[int(order[-1])]
