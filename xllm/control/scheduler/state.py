"""What the collaborators of the scheduler share."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np

from xllm.control.scheduler.queues import WaitingQueue
from xllm.control.scheduler.sequence import RequestState, Sequence, Status
from xllm.control.scheduler.table import Rows, RowTable
from xllm.core.messages.server import Failure, Started
from xllm.core.messages.worker import StepPlan
from xllm.core.request.finish import FinishReason
from xllm.core.utils.arrays import Int32Array
from xllm.kv_cache.blocks import BlockManager


@dataclasses.dataclass(slots=True)
class Counters:
    """Totals since start."""

    num_steps: int = 0
    num_preemptions: int = 0
    prefix_queries: int = 0  # tokens
    prefix_hits: int = 0  # tokens
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclasses.dataclass(slots=True)
class Notices:
    """What the next output batch tells beside sampled tokens."""

    started: list[Started] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    ended: list[tuple[int, int, FinishReason]] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.started or self.failures or self.ended)


@dataclasses.dataclass(frozen=True, slots=True)
class StepInFlight:
    """A launched step whose results have not been committed."""

    plan: StepPlan
    rows: Rows  # the plan's rows, as indexes
    ends: Int32Array  # (S,) tokens computed once the step has run
    num_decodes: int  # the plan's first rows; the rest are chunks
    all_sample: bool


class SchedulerState:
    """Rows, queue, blocks and requests, and the two ways to leave a row."""

    def __init__(self, blocks: BlockManager, vocab_size: int) -> None:
        demand = blocks.demand
        self.blocks = blocks
        self.table = RowTable(demand.max_num_seqs, demand.max_model_len, vocab_size)
        self.queue = WaitingQueue()
        self.requests: dict[int, RequestState] = {}
        self.prefilling: list[Sequence] = []  # by queue order; rows with unscheduled known tokens
        self.in_flight: deque[StepInFlight] = deque()
        self.counters = Counters()
        self.notices = Notices()
        self._retiring: set[int] = set()  # rows that steps in flight still use

    def finish(self, sequence: Sequence) -> None:
        """The sequence is over, wherever it is. What it held is released when steps allow."""
        if sequence.status is Status.RUNNING:
            self.vacate(sequence)
        elif sequence.status is Status.WAITING:
            self.queue.remove(sequence)
        compiling = sequence.status is Status.COMPILING
        keys = sequence.keys
        sequence.status = Status.FINISHED
        sequence.tokens = sequence.keys = None
        state = sequence.state
        del state.live[sequence.choice]
        if not state.live:
            del self.requests[state.request.handle]
        elif sequence.is_leader and not state.prompt_computed:
            heir = next(iter(state.live.values()))
            state.leader = heir.choice
            heir.keys = keys
            if compiling:
                heir.status = Status.COMPILING
            else:
                self.queue.push(heir)

    def vacate(self, sequence: Sequence) -> None:
        """Take a running sequence off its row; the row retires with the steps in flight."""
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
        row = self.table.leave(sequence)
        self._retiring.add(row)
        self._release_if_idle(row)

    def requeue(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue; it will compute its tokens again.

        What a step in flight samples for it is dropped and sampled again: sampling depends on
        seed and position only.
        """
        row = sequence.row
        sequence.tokens = self.table.token_ids[row, : self.table.num_seen[row]].copy()
        self.vacate(sequence)
        self.queue.push(sequence)

    def release_retired(self) -> None:
        """Free the rows and blocks that the last committed step was the last to use."""
        for row in list(self._retiring):
            self._release_if_idle(row)

    def _release_if_idle(self, row: int) -> None:
        if self.table.in_flight[row] == 0:
            self._retiring.remove(row)
            self.blocks.free(row)
            self.table.release(row)

    def pending_blocks(self) -> list[int]:
        """Per group, blocks that become free with the steps in flight, without any preemption."""
        rows = [*self._retiring, *np.flatnonzero(self.table.ending()).tolist()]
        totals = [0] * self.blocks.num_groups
        for row in rows:
            for group, count in enumerate(self.blocks.reclaimable(row)):
                totals[group] += count
        return totals

    @property
    def num_retiring(self) -> int:
        """Rows that wait for steps in flight."""
        return len(self._retiring)

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or retires."""
        return bool(self.requests or self.in_flight or self._retiring)

    def check(self) -> None:
        """Assert that rows, queue, requests and blocks tell the same story."""
        self.table.check()
        self.queue.check()
        held = np.where(self.table.live, self.table.num_computed, -1)
        held[list(self._retiring)] = 0
        self.blocks.check(held)
        counts = dict.fromkeys(Status, 0)
        for handle, state in self.requests.items():
            assert state.request.handle == handle and state.live
            assert state.leader in state.live or state.prompt_computed
            for choice, sequence in state.live.items():
                assert sequence.choice == choice and sequence.state is state
                counts[sequence.status] += 1
                parked = sequence.status is Status.PARKED
                assert not parked or (not state.prompt_computed and not sequence.is_leader)
                assert sequence.status is not Status.COMPILING or sequence.is_leader
        assert counts[Status.FINISHED] == 0
        assert counts[Status.RUNNING] == self.table.num_live
        assert counts[Status.WAITING] == len(self.queue)
        rows = self.table.num_live + self.num_retiring + self.table.num_free
        assert rows == self.table.num_rows
        in_flight = np.zeros(self.table.num_rows, np.int64)
        for step in self.in_flight:
            in_flight[step.rows] += 1
        assert (in_flight == self.table.in_flight).all()
        assert all(self.table.in_flight[row] for row in self._retiring)
        unscheduled = self.table.live & (self.table.num_computed < self.table.num_known)
        prefilling = sorted(sequence.row for sequence in self.prefilling)
        assert prefilling == np.flatnonzero(unscheduled & ~self.table.decoding).tolist()
        if not self.has_work:
            assert self.blocks.usage == 0.0
