"""Taking in the results of a step: tokens, ends, prefix blocks, outputs."""

from __future__ import annotations

import numpy as np

from xllm.control.scheduler.outputs import OutputBuilder, Sampled
from xllm.control.scheduler.sequence import Sequence
from xllm.control.scheduler.state import SchedulerState, StepInFlight
from xllm.core.messages.server import Failure, OutputBatch
from xllm.core.messages.worker import StepPlan, StepResult
from xllm.core.request.finish import FinishReason
from xllm.core.utils.arrays import Int8Array, Int32Array

# How often a sequence may be in a step of several that raises.
_MAX_TRIALS = 3


class Committer:
    """Applies step results to the state. Steady decode runs no Python per row."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._outputs = OutputBuilder(state)

    def commit(self, plan: StepPlan, result: StepResult) -> OutputBatch | None:
        """Take in one step's results; see ``Scheduler.commit``."""
        step = self._retire(plan)
        assert result.step_id == plan.step_id
        for index, reason in result.failed.items():
            self._quarantine(int(step.rows[plan.samples][index]), reason, 500)
        for index, refusal in result.refused.items():
            row = int(step.rows[plan.samples][index])
            self._quarantine(row, refusal.reason, 400, refusal.param)
        sampled = self._take_tokens(step, result)
        self._publish(step, sampled)
        if step.num_decodes < step.rows.size:
            self._outputs.add_prompt_logprobs(result.prompt_logprobs)
            self._outputs.add_pooled(result.pooled)
            self._end_prompts(step, FinishReason.STOP if result.pooled else FinishReason.LENGTH)
        finish, stops = self._ends(sampled)
        batch = self._outputs.build(sampled, finish, stops, result.logprobs)
        if finish is not None:
            self._finish(sampled, finish)
        self._state.release_retired()
        return batch

    def fail(self, plan: StepPlan, message: str) -> OutputBatch | None:
        """The step raised: a sequence that was alone in it ends with an error, several become
        suspects that ``isolation`` tries one by one; one that was tried too often ends too."""
        step = self._retire(plan)
        for row in step.rows.tolist():
            sequence = self._state.table.sequences[row]
            if sequence is None:
                continue
            if step.rows.size == 1 or sequence.num_trials == _MAX_TRIALS:
                self._quarantine(row, message, 500)
                continue
            sequence.suspect = True
            sequence.num_trials += 1
            self._state.blocks.forget(row)
            self._state.requeue(sequence)
        self._state.release_retired()
        return self._outputs.build_notices()

    def flush(self) -> OutputBatch | None:
        """What is to be told without a step."""
        return self._outputs.build_notices()

    def _retire(self, plan: StepPlan) -> StepInFlight:
        step = self._state.in_flight.popleft()
        assert step.plan is plan, "steps are committed in the order of their launch"
        self._state.table.in_flight[step.rows] -= 1
        return step

    def _quarantine(self, row: int, reason: str, status: int, param: str | None = None) -> None:
        sequence = self._state.table.sequences[row]
        if sequence is None:
            return  # left already; the failure is that of a dropped result
        notices = self._state.notices
        notices.failures.append(Failure(sequence.handle, sequence.choice, reason, status, param))
        notices.ended.append((sequence.handle, sequence.choice, FinishReason.ERROR))
        self._state.blocks.forget(row)  # suspect content: nobody may share it
        self._state.finish(sequence)

    def _take_tokens(self, step: StepInFlight, result: StepResult) -> Sampled:
        """Write the sampled tokens of rows that are still live into the host table."""
        table = self._state.table
        rows, positions, tokens = step.rows, step.ends, result.token_ids
        if not step.all_sample:
            rows, positions = rows[step.plan.samples], positions[step.plan.samples]
        live = table.live[rows]
        kept = None
        if np.count_nonzero(live) < rows.size:
            kept = live
            rows, positions, tokens = rows[live], positions[live], tokens[live]
        table.token_ids[rows, positions] = tokens
        totals = positions + 1
        table.num_seen[rows] = totals
        self._state.counters.generation_tokens += rows.size
        return Sampled(rows, totals, tokens, kept)

    def _publish(self, step: StepInFlight, sampled: Sampled) -> None:
        table = self._state.table
        rows, ends = step.rows, step.ends
        if sampled.rows.size < rows.size:
            live = table.live[rows]
            rows, ends = rows[live], ends[live]
        self._state.blocks.retire(rows, ends, table.token_ids)

    def _end_prompts(self, step: StepInFlight, reason: FinishReason) -> None:
        """Rows whose prompt is computed now: let siblings in; a request for no token is over."""
        state = self._state
        rows = step.rows[step.num_decodes :].tolist()
        for row, end in zip(rows, step.ends[step.num_decodes :].tolist(), strict=True):
            sequence = state.table.sequences[row]
            if sequence is None or end < sequence.state.prompt_len:
                continue
            if not sequence.state.prompt_computed:
                sequence.state.prompt_computed = True
                state.counters.prompt_tokens += sequence.state.prompt_len
                for sibling in sequence.state.live.values():
                    if sibling is not sequence:
                        sibling.keys = sequence.keys and sequence.keys.copy()
                        state.queue.push(sibling)
            if end >= sequence.max_total:
                state.notices.ended.append((sequence.handle, sequence.choice, reason))
                state.finish(sequence)

    def _ends(self, sampled: Sampled) -> tuple[Int8Array | None, Int32Array | None]:
        """Finish codes and stop tokens of the sampled entries; None where none ended so."""
        table = self._state.table
        finish = stops = None
        full = sampled.totals >= table.max_total[sampled.rows]
        if np.count_nonzero(full):
            finish = np.where(full, FinishReason.LENGTH, FinishReason.NONE).astype(np.int8)
        stoppable = table.stop_counts[sampled.tokens]
        if not np.count_nonzero(stoppable):
            return finish, stops
        for index in np.flatnonzero(stoppable).tolist():
            sequence = table.sequences[sampled.rows[index]]
            assert sequence is not None
            token = int(sampled.tokens[index])
            if _stops(sequence, token, int(sampled.totals[index])):
                if finish is None:
                    finish = np.zeros(sampled.rows.size, np.int8)
                if stops is None:
                    stops = np.full(sampled.rows.size, -1, np.int32)
                finish[index] = FinishReason.STOP
                stops[index] = token
        return finish, stops

    def _finish(self, sampled: Sampled, finish: Int8Array) -> None:
        for row in sampled.rows[finish != FinishReason.NONE].tolist():
            sequence = self._state.table.sequences[row]
            assert sequence is not None
            self._state.finish(sequence)


def _stops(sequence: Sequence, token: int, total: int) -> bool:
    """Whether a token, the ``total``-th of its sequence, ends it."""
    request = sequence.state.request
    if token not in request.stop_token_ids:
        return False
    num_output = total - sequence.state.prompt_len
    # A grammar that has come to its end wins: until then sampling bans what could end its text.
    return num_output > request.params.min_tokens or request.structured_output is not None
