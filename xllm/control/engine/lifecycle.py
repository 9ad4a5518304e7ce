"""What both loops share: messages in and out, waiting, the exception boundary."""

from __future__ import annotations

import abc
import concurrent.futures
import gc
import logging
from typing import Protocol

from xllm.control.engine.adapters import AdapterBook
from xllm.control.engine.stats import StatsReporter
from xllm.control.scheduler import Scheduler
from xllm.control.workers import WorkerPort
from xllm.core.messages.engine import (
    AbortRequests,
    AddRequests,
    Hello,
    LoadAdapter,
    Profile,
    ResetPrefixCache,
    ToEngine,
    UnloadAdapter,
)
from xllm.core.messages.server import (
    AdapterLoaded,
    EngineReady,
    EngineStats,
    Failure,
    OutputBatch,
    Profiled,
    ToServer,
)
from xllm.core.messages.worker import StepPlan
from xllm.core.request.request import Request

logger = logging.getLogger(__name__)

# Longest that an arrival waits while nothing but compilers work.
_GRAMMAR_SECONDS = 0.005
_READING_SECONDS = 0.005  # how often an idle loop looks whether an adapter's files have been read
_NO_ADAPTER = "model: the adapter was unloaded"


class EngineDeadError(RuntimeError):
    """The engine cannot go on; the message says why."""


class Inbox(Protocol):
    """Where messages to the engine arrive."""

    def receive(self, timeout_seconds: float | None) -> list[ToEngine]:
        """Messages that have arrived, oldest first.

        Args:
            timeout_seconds: how long to wait for the first one; 0 does not wait, None waits for
                ever. A message wakes the wait at once.
        """
        ...


class Outbox(Protocol):
    """Where messages to the servers go."""

    def send(self, message: ToServer) -> None:
        """Send without waiting for a receiver."""
        ...


class EngineLoopBase(abc.ABC):
    """Drives a scheduler and a started worker. Everything happens on the thread of ``run``.

    Args:
        ready: what to answer a ``Hello`` with.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: WorkerPort,
        inbox: Inbox,
        outbox: Outbox,
        ready: EngineReady,
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._inbox = inbox
        self._outbox = outbox
        self._ready = ready
        self._adapters = AdapterBook(scheduler, worker)
        self._stats = StatsReporter()

    @abc.abstractmethod
    def step(self) -> list[ToServer]:
        """Advance by one step; the messages to the servers that it brought."""

    # --- requests --------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: the handle is in use.
        """
        if request.adapter and request.adapter not in self._adapters:
            self._scheduler.refuse(Failure(request.handle, -1, _NO_ADAPTER, 404, "model"))
        else:
            self._scheduler.add(request)

    def abort(self, handle: int, choice: int = -1, stopped: bool = False) -> None:
        """End one choice (or all, -1) of a request; see ``Scheduler.abort``."""
        self._scheduler.abort(handle, choice, stopped)

    def load_adapter(self, name: str, folder: str) -> AdapterLoaded:
        """Load an adapter between two steps, which wait for its files to be read."""
        return self._adapters.load(name, folder)

    def unload_adapter(self, adapter: int) -> None:
        """Take no new request for an adapter; its room comes back when its last one has ended."""
        self._adapters.unload(adapter)

    def check(self) -> None:
        """Assert every invariant of the control plane. Slow: for tests and idle moments."""
        self._scheduler.check()
        self._adapters.check()

    def stats(self) -> EngineStats:
        """Gauges and counters now."""
        return self._stats.complete(self._scheduler.stats(), self._worker.stats())

    @property
    def running_seconds(self) -> float:
        """How long the step that runs now has taken, 0 between steps. Any thread may read it."""
        return self._stats.running_seconds

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serve for ever: the process ends with its server, which knows what is still owed.

        An idle engine blocks on its inbox: whatever arrives while a step runs is received before
        the loop can block, so nothing is left waiting.

        Raises:
            EngineDeadError: the worker cannot go on.
        """
        gc.freeze()  # what start-up built stays: full collections need not walk it
        while True:
            self._receive()
            for message in self.step():
                self._outbox.send(message)
            idle = not self._scheduler.has_work
            if self._stats.due(idle):
                self._outbox.send(self.stats())

    def _receive(self) -> None:
        """Apply what has arrived, waiting for it when there is no work."""
        timeout = None if not self._adapters.reading else _READING_SECONDS
        for message in self._inbox.receive(0.0 if self._scheduler.has_work else timeout):
            self._apply(message)
        for loaded in self._adapters.loaded():
            self._outbox.send(loaded)
        self._adapters.release()

    def _apply(self, message: ToEngine) -> None:
        match message:
            case AddRequests(requests):
                for request in requests:
                    try:
                        self.submit(request)
                    except ValueError as error:  # the owner of the handle is being served
                        logger.error("request %s dropped: %s", request.request_id, error)
            case AbortRequests(handles, choices, stopped):
                for handle, choice in zip(handles, choices, strict=True):
                    self.abort(handle, choice, stopped)
            case Hello():
                self._outbox.send(self._ready)
            case Profile(start):
                self._outbox.send(self._profile(start))
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case LoadAdapter(name, folder):
                self._adapters.begin(name, folder)
            case UnloadAdapter(adapter):
                self.unload_adapter(adapter)

    def _profile(self, start: bool) -> Profiled:
        try:
            path = self._worker.start_profile() if start else self._worker.stop_profile()
        except ValueError as error:
            return Profiled("", str(error))
        except Exception as error:
            logger.exception("profiling failed")
            return Profiled("", f"profiling failed: {type(error).__name__}")
        return Profiled(path)

    # --- for the two loops -------------------------------------------------------------------

    def _fail_step(self, plan: StepPlan, error: Exception) -> OutputBatch | None:
        """A step raised: its sequences end with an error; the others go on if the worker can."""
        reason = f"{type(error).__name__}: {error}"
        logger.error("step %d failed: %s", plan.step_id, reason, exc_info=error)
        if not self._worker.healthy:
            raise EngineDeadError(reason) from error
        return self._scheduler.fail(plan, f"the model step failed: {reason}")

    def _await_grammars(self) -> None:
        """Nothing can run but what waits for a grammar: let its compiler have the processor."""
        if pending := self._scheduler.pending_grammars:
            concurrent.futures.wait(pending, _GRAMMAR_SECONDS, concurrent.futures.FIRST_COMPLETED)

    def _messages(self, *batches: OutputBatch | None) -> list[ToServer]:
        return [batch for batch in batches if batch is not None]
