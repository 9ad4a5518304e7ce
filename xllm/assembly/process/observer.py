"""Turns what passes the engine client into metrics: each request is counted exactly once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from xllm.core.messages.server import EngineStats, OutputBatch
from xllm.core.observability.logging import get_logger
from xllm.core.observability.metrics import FINISH_REASONS, ServerMetrics
from xllm.core.observability.tracing import CALLER, RequestTimes
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request

logger = get_logger(__name__)

# A sequence's key is handle << _CHOICE_BITS | choice.
_CHOICE_BITS = 16


@dataclasses.dataclass(slots=True)
class _OpenRequest:
    request_id: str
    arrival: float
    prompt_len: int
    open_choices: set[int]
    part_of: int = 0  # handle of the request that is counted in its place
    num_tokens: int = 0
    has_started: bool = False
    has_tokens: bool = False
    times: RequestTimes | None = None  # kept only where somebody wants them
    severity: int = 0  # index into FINISH_REASONS of the worst choice so far


class RequestObserver:
    """Follows open requests by their outputs; per step the work on tokens is columnar.

    A request that others answer (their ``part_of`` is its handle) is submitted before them and
    ended after them. It is counted, they are not, except that all of the engine's tokens are.

    Args:
        metrics: the instruments to observe into.
        log_requests: whether to log one line per finished request.
        on_end: told the times of every request that has ended.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        log_requests: bool = False,
        on_end: Callable[[RequestTimes], None] | None = None,
    ) -> None:
        self._on_end = on_end
        self._metrics = metrics
        self._log_requests = log_requests
        self._open: dict[int, _OpenRequest] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._last_token_time = np.zeros(0)
        self._num_tokens = np.zeros(0, np.int64)

    @property
    def num_open(self) -> int:
        """Requests that have not ended, however many parts they are answered in."""
        return sum(not request.part_of for request in self._open.values())

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended, running or waiting."""
        return len(self._slots)

    def submitted(self, requests: Sequence[Request]) -> None:
        """Requests are on their way to the engine."""
        now = time.monotonic()
        for request in requests:
            choices = set(range(request.params.n))
            self._open[request.handle] = _OpenRequest(
                request.request_id,
                request.arrival_time or now,
                len(request.prompt_token_ids),
                choices,
                request.part_of,
            )
            if self._on_end is not None and not request.part_of:
                self._open[request.handle].times = _times(request, now)
            for choice in choices:
                self._slots[request.handle << _CHOICE_BITS | choice] = self._take_slot()
        self._metrics.requests_started.add(sum(not request.part_of for request in requests))

    def delivered(self, batch: OutputBatch) -> None:
        """One step's outputs have arrived."""
        for started in batch.started:
            self._started(started.handle, started.queue_seconds)
        if len(batch.token_ids):
            self._observe_tokens(batch)
        if batch.pooled is not None:
            self._metrics.requests_pooled.add(len(batch.pooled.handles))
        for index in np.flatnonzero(batch.finish).tolist():
            reason = FinishReason(int(batch.finish[index])).openai or "error"
            self.ended(int(batch.handles[index]), int(batch.choices[index]), reason)
        for failure in batch.failures:
            self.ended(failure.handle, failure.choice, "error")

    def ended(self, handle: int, choice: int, reason: str) -> None:
        """A sequence (choice -1: all of a request's) has ended; later reports are ignored."""
        request = self._open.get(handle)
        if request is None:
            return
        ending = request.open_choices & ({choice} if choice >= 0 else request.open_choices)
        if not ending:
            return
        for each in ending:
            slot = self._slots.pop(handle << _CHOICE_BITS | each)
            request.num_tokens += int(self._num_tokens[slot])
            self._free.append(slot)
        request.open_choices -= ending
        request.severity = max(request.severity, FINISH_REASONS.index(reason))
        if not request.open_choices:
            del self._open[handle]
            self._close(request)

    def fail_all(self) -> None:
        """The engine is gone: every open request ends with an error."""
        for handle in list(self._open):
            self.ended(handle, -1, "error")

    def take_stats(self, stats: EngineStats) -> None:
        """Take over the engine's own gauges and totals."""
        metrics = self._metrics
        metrics.running.set(stats.num_running)
        metrics.waiting.set(stats.num_waiting)
        metrics.kv_usage.set(stats.kv_usage)
        metrics.steps.raise_to(stats.num_steps)
        metrics.step_seconds.raise_to(stats.step_seconds)
        metrics.preemptions.raise_to(stats.num_preemptions)
        metrics.prefix_queries.raise_to(stats.prefix_queries)
        metrics.prefix_hits.raise_to(stats.prefix_hits)
        worker = stats.worker
        metrics.step_runners.raise_to(worker.decode_graph_steps, "decode_graph")
        metrics.step_runners.raise_to(worker.mixed_graph_steps, "mixed_graph")
        metrics.step_runners.raise_to(worker.eager_steps, "eager")
        metrics.idle_p50.set(worker.idle_p50_us * 1e-6)
        metrics.idle_p99.set(worker.idle_p99_us * 1e-6)

    def check(self) -> None:
        """Assert that the ledgers agree."""
        choices = sum(len(r.open_choices) for r in self._open.values())
        assert choices == len(self._slots)
        assert len(self._slots) + len(self._free) == len(self._num_tokens)

    def _started(self, handle: int, queue_seconds: float) -> None:
        """A sequence has its turn: what counts is the first of a request."""
        request = self._open.get(handle)
        if request is None or request.has_started:
            return
        request.has_started = True
        if request.part_of:
            self._started(request.part_of, queue_seconds)
            return
        self._metrics.prompt_tokens.add(request.prompt_len)
        self._metrics.queue.observe([queue_seconds])
        if request.times is not None:
            request.times.scheduled = request.arrival + queue_seconds

    def _observe_tokens(self, batch: OutputBatch) -> None:
        self._metrics.generation_tokens.add(len(batch.token_ids))
        keys = (batch.handles.astype(np.int64) << _CHOICE_BITS) | batch.choices
        find = self._slots.get
        slots = np.array([find(key, -1) for key in keys.tolist()], np.int64)
        known = (slots >= 0) & (batch.counts > 0)
        slots, counts = slots[known], batch.counts[known]
        now = time.monotonic()
        last = self._last_token_time[slots]
        first = last == 0.0
        # Tokens that arrive together share the time since the token before them.
        gaps = (now - last[~first]) / counts[~first]
        self._metrics.itl.observe(np.repeat(gaps, counts[~first]))
        if first.any():
            requests = self._answered_first(batch.handles[known][first].tolist())
            self._metrics.ttft.observe([now - request.arrival for request in requests])
            for request in requests:
                request.has_tokens = True
                if request.times is not None and not request.times.first_token:
                    request.times.first_token = now
        self._last_token_time[slots] = now
        self._num_tokens[slots] += counts

    def _answered_first(self, handles: Sequence[int]) -> list[_OpenRequest]:
        """The requests whose choices have a first token now; one in parts counts once."""
        found = []
        for handle in handles:
            request = self._open[handle]
            if not request.part_of:
                found.append(request)
            elif (whole := self._open.get(request.part_of)) and not whole.has_tokens:
                found.append(whole)
        return found

    def _close(self, request: _OpenRequest) -> None:
        if not request.part_of:
            self._count(request)
        elif whole := self._open.get(request.part_of):
            whole.num_tokens += request.num_tokens
            if FINISH_REASONS[request.severity] in ("abort", "error"):  # others say nothing of it
                whole.severity = max(whole.severity, request.severity)

    def _count(self, request: _OpenRequest) -> None:
        metrics = self._metrics
        reason = FINISH_REASONS[request.severity]
        seconds = time.monotonic() - request.arrival
        metrics.requests_finished.add(1, reason)
        metrics.e2e.observe([seconds])
        metrics.request_prompt.observe([request.prompt_len])
        metrics.request_generation.observe([request.num_tokens])
        if self._on_end is not None and request.times is not None:
            request.times.end = request.arrival + seconds
            request.times.output_tokens = request.num_tokens
            request.times.finish_reason = reason
            self._on_end(request.times)
        if self._log_requests:
            logger.info(
                "request %s: %d prompt tokens, %d generated, %s, %.3f s",
                request.request_id,
                request.prompt_len,
                request.num_tokens,
                reason,
                seconds,
                extra={
                    "fields": {
                        "request_id": request.request_id,
                        "prompt_tokens": request.prompt_len,
                        "generation_tokens": request.num_tokens,
                        "finish_reason": reason,
                        "seconds": round(seconds, 6),
                    }
                },
            )

    def _take_slot(self) -> int:
        if not self._free:
            size = len(self._num_tokens)
            grown = max(64, size)
            self._last_token_time = np.concatenate([self._last_token_time, np.zeros(grown)])
            self._num_tokens = np.concatenate([self._num_tokens, np.zeros(grown, np.int64)])
            self._free.extend(range(size + grown - 1, size - 1, -1))
        slot = self._free.pop()
        self._last_token_time[slot] = 0.0
        self._num_tokens[slot] = 0
        return slot


def _times(request: Request, now: float) -> RequestTimes:
    asked = {
        "gen_ai.request.choice.count": request.params.n,
        "gen_ai.request.temperature": request.params.temperature,
        "gen_ai.request.top_p": request.params.top_p,
        "gen_ai.request.max_tokens": request.max_tokens,
    }
    arrival = request.arrival_time or now
    prompt_len = len(request.prompt_token_ids)
    caller = CALLER.get()
    return RequestTimes(request.request_id, asked, caller, arrival, prompt_tokens=prompt_len)
