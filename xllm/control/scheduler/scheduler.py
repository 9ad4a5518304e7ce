"""The scheduler: which rows compute which tokens in the next step, and what came of the last."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from xllm.control.scheduler.admission import Admission
from xllm.control.scheduler.budget import StepDraft, TokenBudget
from xllm.control.scheduler.commit import Committer
from xllm.control.scheduler.full_steps import FullSteps
from xllm.control.scheduler.grammars import GrammarQueue
from xllm.control.scheduler.isolation import Isolation
from xllm.control.scheduler.order import LongestFirst
from xllm.control.scheduler.policies import POLICIES
from xllm.control.scheduler.policies.base import Phase, Policy, RunningLoad
from xllm.control.scheduler.preemption import Preemption
from xllm.control.scheduler.sequence import Status
from xllm.control.scheduler.sharing import SharedPrefixFinder
from xllm.control.scheduler.state import SchedulerState, StepInFlight
from xllm.core.config import SchedulerConfig
from xllm.core.grammar import GrammarCache
from xllm.core.messages.server import EngineStats, Failure, OutputBatch
from xllm.core.messages.worker import NewRows, StepPlan, StepResult
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.kv_cache.blocks import BlockManager

PRIORITY_POLICIES = ("fcfs", "priority")


class Scheduler:
    """Requests in, step plans out, step results in, output batches out. No I/O, no torch.

    Args:
        config: budgets and policies.
        blocks: block accounting; its demand gives the number of rows and the context length.
        vocab_size: sampled tokens are below it.
        grammars: compiles what constrains answers; None refuses such requests.
        enable_prefix_caching: whether requests share the blocks of equal prefixes. Without it
            only the choices of one request do.
        full_step: see ``WorkerInfo``.
        find_shared_prefixes: whether the worker has use for ``StepPlan.shared_prefixes``.

    ``schedule`` may run ahead of ``commit`` by any number of steps; steps are committed in the
    order in which they were scheduled. Not thread-safe.

    Raises:
        ValueError: unknown scheduling or priority policy.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        vocab_size: int,
        *,
        grammars: GrammarCache | None = None,
        enable_prefix_caching: bool = True,
        full_step: int = 0,
        find_shared_prefixes: bool = False,
    ) -> None:
        if config.priority_policy not in PRIORITY_POLICIES:
            known = ", ".join(PRIORITY_POLICIES)
            raise ValueError(
                f"--priority-policy must be one of {known}, got {config.priority_policy!r}"
            )
        self._config = config
        self._state = SchedulerState(blocks, vocab_size)
        self._policy: Policy = POLICIES.load(config.scheduling).Policy()
        self._grammars = GrammarQueue(self._state, grammars)
        self._admission = Admission(config, self._state, self._grammars, enable_prefix_caching)
        self._preemption = Preemption(self._state)
        self._committer = Committer(self._state)
        self._isolation = Isolation(self._state, self._admission, self._preemption)
        self._sharing = SharedPrefixFinder(blocks, find_shared_prefixes)
        self._longest_first = LongestFirst()
        groups = self._policy.groups_prompts and config.enable_chunked_prefill
        self._full_steps = FullSteps(full_step if groups else 0, config.max_num_batched_tokens)
        self._stalled_steps = 0
        # Columns of steady decode plans, sliced instead of built; workers only read plans.
        self._ones = np.ones(config.max_num_seqs, np.int32)
        self._trues = np.ones(config.max_num_seqs, np.bool_)
        self._phases = {
            Phase.DECODE: self._decode,
            Phase.CONTINUE: self._continue,
            Phase.ADMIT: self._admission.admit,
        }

    # --- requests --------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. One that can never run is answered with a ``Failure`` instead.

        Raises:
            ValueError: the handle is in use.
        """
        failure = self._admission.refusal(request)
        if failure is not None:
            self.refuse(failure)
        else:
            self._admission.enqueue(request)

    def abort(self, handle: int, choice: int = -1, stopped: bool = False) -> None:
        """End one choice, or with -1 all, of a request; unknown ones are ignored.

        Results in flight are dropped; rows and blocks come back once no step uses them.

        Args:
            stopped: the answer is complete (a stop string), not cancelled.
        """
        entry = self._state.requests.get(handle)
        if entry is None:
            return
        reason = FinishReason.STOP if stopped else FinishReason.ABORT
        for sequence in list(entry.live.values()):
            if choice in (-1, sequence.choice):
                self._state.notices.ended.append((handle, sequence.choice, reason))
                self._state.finish(sequence)

    def refuse(self, failure: Failure) -> None:
        """Answer a request that was never added."""
        self._state.notices.failures.append(failure)

    def uses_adapter(self, adapter: int) -> bool:
        """Whether a request or a step in flight needs this adapter."""
        table = self._state.table
        if (table.adapters[table.in_flight > 0] == adapter).any():
            return True
        return any(entry.request.adapter == adapter for entry in self._state.requests.values())

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs, or has a step in flight."""
        return self._state.has_work

    @property
    def pending_grammars(self) -> list[Future[Any]]:
        """What requests wait for that cannot be scheduled yet."""
        return self._grammars.pending

    # --- the step --------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when nothing can run before a commit or an arrival.

        The plan's arrays stay as they are, and are read only: plans share constant columns.
        """
        state = self._state
        self._grammars.release()
        if self._isolation.active:
            draft = StepDraft(TokenBudget(self._config.max_num_batched_tokens))
            self._isolation.draft(draft)
            return None if draft.is_empty else self._launch(draft)
        running = RunningLoad(
            num_decoding=state.table.num_live - len(state.prefilling),
            num_prefilling=len(state.prefilling),
            stalled_steps=self._stalled_steps,
        )
        size = self._full_steps.size(running.num_decoding, self._admission.prompts())
        draft = StepDraft(TokenBudget(size or running.num_decoding))
        phases = self._policy.order(len(state.queue), running, size) if size else (Phase.DECODE,)
        for phase in phases:
            self._phases[phase](draft)
        if draft.is_empty:
            idle = len(self._grammars) == len(state.requests)
            assert state.in_flight or idle, "work waits, but nothing can run"
            return None
        return self._launch(draft)

    def commit(self, plan: StepPlan, result: StepResult) -> OutputBatch | None:
        """Take in the results of the oldest step in flight; what there is to tell, or None."""
        return self._committer.commit(plan, result)

    def fail(self, plan: StepPlan, message: str) -> OutputBatch | None:
        """The oldest step in flight has no results: find out which sequence is to blame, and end
        it with this error."""
        return self._committer.fail(plan, message)

    def flush(self) -> OutputBatch | None:
        """What there is to tell when no step runs: refusals and aborts."""
        return self._committer.flush()

    # --- phases ------------------------------------------------------------------------------

    def _decode(self, draft: StepDraft) -> None:
        table = self._state.table
        rows = table.decode_order()
        if not rows.size:
            self._stalled_steps = 0
            return
        known = table.num_known[rows]
        ready = known < table.max_total[rows]  # the rest ends with a step in flight
        if np.count_nonzero(ready) < rows.size:
            rows, known = rows[ready], known[ready]
        stalls = rows.size > draft.budget.left
        self._stalled_steps = self._stalled_steps + 1 if stalls else 0
        if stalls:
            rows, known = rows[: draft.budget.left], known[: draft.budget.left]
        if not self._state.blocks.extend_decodes(rows, known - 1):
            rows, known = self._preemption.extend_decodes(draft, rows, known)
        draft.decode(rows, known)

    def _continue(self, draft: StepDraft) -> None:
        for sequence in list(self._state.prefilling):
            if not draft.budget.left:
                return
            if sequence.status is Status.RUNNING:  # not preempted for one before it
                self._preemption.add_chunk(draft, sequence)

    # --- launch ------------------------------------------------------------------------------

    def _launch(self, draft: StepDraft) -> StepPlan:
        """Let the drafted step take effect on the rows, and write its plan."""
        state, table = self._state, self._state.table
        rows, known = self._longest_first.sort(draft.decode_rows, draft.decode_known)
        num_decodes = rows.size
        starts, ends = known - 1, known
        counts, samples = self._ones[:num_decodes], self._trues[:num_decodes]
        table.num_known[rows] = known + 1
        shared = None if draft.chunks else self._sharing.find(rows, table.decode_version)
        if draft.chunks:
            chunk_rows, chunk_starts, chunk_counts, chunk_samples = self._advance_chunks(draft)
            rows = np.concatenate([rows, chunk_rows])
            starts = np.concatenate([starts, chunk_starts])
            counts = np.concatenate([counts, chunk_counts])
            samples = np.concatenate([samples, chunk_samples])
            ends = starts + counts
        table.num_computed[rows] = ends
        table.in_flight[rows] += 1
        plan = StepPlan(
            step_id=state.counters.num_steps,
            rows=rows.astype(np.int32),
            num_scheduled=counts,
            num_computed=starts,
            samples=samples,
            blocks=state.blocks.take_appended(),
            freed_rows=table.take_freed(),
            new_rows=self._new_rows(draft) if draft.started else None,
            shared_prefixes=shared,
        )
        state.counters.num_steps += 1
        all_sample = not draft.chunks or bool(samples.all())
        state.in_flight.append(StepInFlight(plan, rows, ends, num_decodes, all_sample))
        return plan

    def _advance_chunks(self, draft: StepDraft) -> tuple[np.ndarray, ...]:
        """Columns of the chunk rows; those that are shaped like decodes come first."""
        table = self._state.table
        columns = []
        for sequence, count in draft.chunks.items():
            row = sequence.row
            start, known = int(table.num_computed[row]), int(table.num_known[row])
            samples = False
            if start + count == known:
                self._state.prefilling.remove(sequence)
                samples = known < int(table.max_total[row])  # else it only scores its prompt
                if samples:
                    table.num_known[row] = known + 1
                    table.begin_decoding(row)
            columns.append((row, start, count, samples))
        columns.sort(key=lambda entry: not (entry[3] and entry[2] == 1))
        rows, starts, counts, sampling = zip(*columns, strict=True)
        return (
            np.array(rows, np.intp),
            np.array(starts, np.int32),
            np.array(counts, np.int32),
            np.array(sampling, np.bool_),
        )

    def _new_rows(self, draft: StepDraft) -> NewRows:
        table = self._state.table
        rows = np.array([sequence.row for sequence in draft.started], np.int32)
        num_tokens = table.num_seen[rows]
        adapters = table.adapters[rows]
        seconds = [sequence.state.request.second_start for sequence in draft.started]
        return NewRows(
            rows=rows,
            num_tokens=num_tokens,
            prompt_lens=np.array([seq.state.prompt_len for seq in draft.started], np.int32),
            token_ids=np.concatenate(
                [
                    table.token_ids[row, :count]
                    for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True)
                ]
            ),
            sampling=[sequence.sampling() for sequence in draft.started],
            adapters=adapters if adapters.any() else None,
            second_starts=np.array(seconds, np.int32) if any(seconds) else None,
        )

    # --- facts -------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Gauges and counters; ``step_seconds`` is the engine loop's to fill in."""
        state, counters = self._state, self._state.counters
        num_sequences = sum(len(entry.live) for entry in state.requests.values())
        return EngineStats(
            num_running=state.table.num_live,
            num_waiting=num_sequences - state.table.num_live,
            kv_usage=state.blocks.usage,
            num_steps=counters.num_steps,
            num_preemptions=counters.num_preemptions,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            idle=not state.has_work,
        )

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no sequence uses."""
        self._state.blocks.reset_prefix_cache()

    def check(self) -> None:
        """Assert every invariant of rows, queues and blocks. Slow: for tests and idle moments."""
        self._state.check()
        self._grammars.check()
