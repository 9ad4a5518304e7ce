"""Loaded adapters as the engine loop knows them: ids, and when a slot may be given back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from xllm.control.scheduler import Scheduler
from xllm.control.workers import WorkerPort
from xllm.core.messages.server import AdapterLoaded

logger = logging.getLogger(__name__)


class AdapterBook:
    """Loads and unloads adapters between steps. Their files are read beside the steps.

    Ids are never used twice, so that cached prefixes of an adapter that is gone match nothing. An
    adapter that leaves takes no new request; its slot is given back when its last one has ended.
    """

    def __init__(self, scheduler: Scheduler, worker: WorkerPort) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._names: dict[int, str] = {}
        self._leaving: set[int] = set()
        self._last_id = 0
        self._reads: list[tuple[str, Future[object]]] = []

    def __contains__(self, adapter: int) -> bool:
        """Whether requests may name this adapter."""
        return adapter in self._names

    def begin(self, name: str, folder: str) -> None:
        """Begin to load one: steps go on while a thread reads its files."""
        read: Future[object] = Future()

        def work() -> None:
            try:
                read.set_result(self._worker.read_adapter(folder))
            except Exception as error:
                read.set_exception(error)

        # A daemon: a file system that hangs must not keep an engine from ending.
        threading.Thread(target=work, name="adapter-reader", daemon=True).start()
        self._reads.append((name, read))

    @property
    def reading(self) -> bool:
        """Whether ``loaded`` has answers to give, now or later."""
        return bool(self._reads)

    def loaded(self) -> list[AdapterLoaded]:
        """Hand the worker what has been read; the answers to the servers say how it went."""
        done = [(name, read) for name, read in self._reads if read.done()]
        self._reads = [each for each in self._reads if each not in done]
        return [self._load(name, read.result) for name, read in done]

    def load(self, name: str, folder: str) -> AdapterLoaded:
        """Load one at once, while no step runs."""
        return self._load(name, lambda: self._worker.read_adapter(folder))

    def _load(self, name: str, weights: Callable[[], object]) -> AdapterLoaded:
        self.release()
        adapter = self._last_id + 1
        try:
            self._worker.load_adapter(adapter, weights())
        except ValueError as error:
            return AdapterLoaded(name, 0, str(error))
        except Exception as error:
            logger.exception("adapter %s: loading failed", name)
            return AdapterLoaded(name, 0, f"loading failed: {type(error).__name__}")
        self._last_id = adapter
        self._names[adapter] = name
        return AdapterLoaded(name, adapter)

    def unload(self, adapter: int) -> None:
        """Take no new request for an adapter; unknown ones are ignored."""
        if self._names.pop(adapter, None) is not None:
            self._leaving.add(adapter)
            self.release()

    def release(self) -> None:
        """Give back the slots of adapters that left and are no longer used."""
        for adapter in [a for a in self._leaving if not self._scheduler.uses_adapter(a)]:
            self._leaving.remove(adapter)
            self._worker.unload_adapter(adapter)

    def check(self) -> None:
        """Assert that no adapter is served and leaving at once, and none in use is gone."""
        known = self._leaving | self._names.keys()
        assert len(known) == len(self._leaving) + len(self._names)
        gone = set(range(1, self._last_id + 1)) - known
        assert not any(self._scheduler.uses_adapter(adapter) for adapter in gone)
