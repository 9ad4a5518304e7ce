"""When the engine tells its gauges and counters."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec

from xllm.core.messages.server import EngineStats
from xllm.core.messages.worker import WorkerStats

MIN_INTERVAL_SECONDS = 0.25


class StatsReporter:
    """Adds the time spent in steps to the scheduler's stats, and paces them.

    Stats are due at most every ``MIN_INTERVAL_SECONDS``, and at once when the engine goes idle, so
    that the last ones anyone sees are complete.
    """

    def __init__(self) -> None:
        self._step_seconds = 0.0
        self._began: float | None = None  # of the step that runs now
        self._last_time = float("-inf")
        self._told_idle = False

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of the block as time inside steps."""
        self._told_idle = False
        began = self._began = time.perf_counter()
        try:
            yield
        finally:
            self._began = None
            self._step_seconds += time.perf_counter() - began

    @property
    def running_seconds(self) -> float:
        """Seconds since the running step began; 0 between steps. Any thread may read it."""
        began = self._began
        return 0.0 if began is None else time.perf_counter() - began

    def complete(self, stats: EngineStats, worker: WorkerStats) -> EngineStats:
        """The scheduler's stats with ``step_seconds`` and the worker's filled in."""
        return msgspec.structs.replace(stats, step_seconds=self._step_seconds, worker=worker)

    def due(self, idle: bool) -> bool:
        """Whether to tell the stats now; noted as told if so."""
        now = time.monotonic()
        if idle:
            due = not self._told_idle
        else:
            due = now - self._last_time >= MIN_INTERVAL_SECONDS
        if due:
            self._last_time, self._told_idle = now, idle
        return due
