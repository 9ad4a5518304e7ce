"""The engine in this process and on this thread, for offline use."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from xllm.assembly.engine import Engine, build_engine
from xllm.assembly.resolve import resolve_files
from xllm.core.config import XllmConfig
from xllm.core.config.env import let_waiting_threads_sleep
from xllm.core.config.files import ModelFiles
from xllm.core.messages.server import EngineProgress, EngineReady, EngineStats, OutputBatch
from xllm.core.request.request import Request


def _ignore_progress(message: EngineProgress) -> None:
    pass


@contextlib.contextmanager
def _between_steps() -> Iterator[None]:
    """Put an interrupt (Ctrl-C) off to the end of the block, a second one not: what is cut short in
    the middle of a step leaves an engine that cannot go on."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])


class InprocEngine:
    """Runs scheduler and worker synchronously: ``add`` requests, ``step`` until none is left.

    Args:
        config: what was asked for.
        on_progress: told of every phase of the start-up.
    """

    def __init__(
        self,
        config: XllmConfig,
        on_progress: Callable[[EngineProgress], None] = _ignore_progress,
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._engine: Engine | None = None
        self.files: ModelFiles

    def start(self) -> EngineReady:
        """Resolve and load the model.

        Raises:
            ValueError: the model does not exist or does not fit the configuration.
        """
        let_waiting_threads_sleep()
        self.files = resolve_files(self._config, self._on_progress)
        mailbox = _NoMail()
        self._engine = build_engine(self._config, self.files, mailbox, mailbox, self._on_progress)
        return self._engine.ready

    def close(self) -> None:
        """Give back device and memory; harmless when not started."""
        if self._engine is not None:
            self._engine.worker.close()
            self._engine = None

    @property
    def ready(self) -> EngineReady:
        """Facts of the loaded model."""
        return self._running().ready

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return self._running().scheduler.has_work

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests; one that can never run is answered by a failure in a later batch."""
        loop = self._running().loop
        with _between_steps():
            for request in requests:
                loop.submit(request)

    def abort(self, handles: Sequence[int], choices: Sequence[int], stopped: bool = False) -> None:
        """Stop sequences; see ``core.messages.AbortRequests``."""
        loop = self._running().loop
        with _between_steps():
            for handle, choice in zip(handles, choices, strict=True):
                loop.abort(handle, choice, stopped)

    def load_adapter(self, name: str, folder: str) -> int:
        """Load a LoRA adapter; the number that requests name it by.

        Raises:
            ValueError: it does not fit.
        """
        loaded = self._running().loop.load_adapter(name, folder)
        if loaded.error is not None:
            raise ValueError(loaded.error)
        return loaded.adapter

    def unload_adapter(self, adapter: int) -> None:
        """Forget an adapter once its last request has ended."""
        self._running().loop.unload_adapter(adapter)

    def step(self) -> list[OutputBatch]:
        """Run one step; what it brought. An interrupt waits for its end."""
        with _between_steps():
            messages = self._running().loop.step()
        return [message for message in messages if isinstance(message, OutputBatch)]

    def stats(self) -> EngineStats:
        """Gauges and counters now."""
        return self._running().loop.stats()

    def _running(self) -> Engine:
        assert self._engine is not None, "start() comes first"
        return self._engine


class _NoMail:
    """Inbox and outbox of a loop that is called directly."""

    def receive(self, timeout_seconds: float | None) -> list[Any]:
        return []

    def send(self, message: Any) -> None:
        raise AssertionError("a directly driven loop returns its messages")
