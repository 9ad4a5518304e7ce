"""Sequences that wait for a row."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from xllm.control.scheduler.sequence import Sequence, Status

# Removed sequences that the heap may hold beside as many as wait.
_MIN_REMOVED = 64


class WaitingQueue:
    """A heap by ``Sequence.queue_key``; removed sequences are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[bool, int, bool, int], Sequence]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """The waiting sequences, in no order."""
        return (entry[1] for entry in self._heap if entry[1].status is Status.WAITING)

    def in_turn(self) -> Iterator[Sequence]:
        """The waiting sequences as they come next, found while they are asked for."""
        heap = self._heap
        front = [(heap[0], 0)] if heap else []
        while front:
            entry, place = heapq.heappop(front)
            if entry[1].status is Status.WAITING:
                yield entry[1]
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(front, (heap[child], child))

    def push(self, sequence: Sequence) -> None:
        """Let a new or preempted sequence wait."""
        sequence.status = Status.WAITING
        heapq.heappush(self._heap, (sequence.queue_key, sequence))
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        """The next in turn."""
        while self._heap:
            sequence = self._heap[0][1]
            if sequence.status is Status.WAITING:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> None:
        """Take out what ``peek`` returned; its status has changed by now or will at once."""
        heapq.heappop(self._heap)
        self._num_waiting -= 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that will not come back."""
        assert sequence.status is Status.WAITING
        sequence.status = Status.FINISHED
        self._num_waiting -= 1
        # What never surfaces, because others always come first, must not pile up.
        if len(self._heap) > 2 * self._num_waiting + _MIN_REMOVED:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)

    def check(self) -> None:
        """Assert that the count is right and that nothing waits twice."""
        waiting = list(self)
        assert len(waiting) == len(set(map(id, waiting))) == self._num_waiting
        assert all(seq.row == -1 and seq.tokens is not None for seq in waiting)
