"""Compiled grammars by content, made on threads that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from xllm.core.grammar.compiler import Grammar, GrammarCompiler, GrammarError
from xllm.core.observability.logging import get_logger
from xllm.core.request.structured import StructuredOutput

logger = get_logger(__name__)

_NUM_RECENT = 256
_NUM_THREADS = 2


class Compilation:
    """One grammar on its way; ``future`` may end with ``GrammarError``.

    Whoever holds it keeps it in the cache.
    """

    def __init__(self, output: StructuredOutput) -> None:
        self.output = output
        self.future: Future[Grammar] = Future()
        self._begun: float | None = None  # time.monotonic()

    @property
    def running_seconds(self) -> float:
        """How long it has been compiled so far; 0 while it waits for its turn."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be used; only asked once ``future`` is done."""
        failure = self.future.exception()
        return None if failure is None else str(failure)

    def run(self, get_compiler: Callable[[], GrammarCompiler]) -> None:
        """Compile; never raises."""
        self._begun = time.monotonic()
        try:
            grammar = get_compiler().compile(self.output)
        except GrammarError as error:
            self.future.set_exception(error)
        except BaseException as error:  # a panic of the library is no Exception
            logger.exception("a grammar could not be compiled")
            self.future.set_exception(
                GrammarError(f"the grammar compiler failed: {type(error).__name__}")
            )
        else:
            self.future.set_result(grammar)


class GrammarCache:
    """Compiles each grammar once, and remembers the last ``_NUM_RECENT`` of them.

    Threads are daemons and start on first use: a process that never meets a grammar pays nothing,
    and one that ends does not wait for a compilation.

    Args:
        make_compiler: builds the compiler, on a thread of the cache, when first needed.
    """

    def __init__(self, make_compiler: Callable[[], GrammarCompiler]) -> None:
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._known: weakref.WeakValueDictionary[tuple[str, str, bool], Compilation] = (
            weakref.WeakValueDictionary()
        )
        self._recent: OrderedDict[tuple[str, str, bool], Compilation] = OrderedDict()
        self._waiting: queue.SimpleQueue[Compilation] = queue.SimpleQueue()
        self._num_threads = 0

    def submit(self, output: StructuredOutput) -> Compilation:
        """The grammar's compilation: begun now, under way or done already."""
        key = output.grammar_key
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = Compilation(output)
                self._waiting.put(found)
                self._start_thread()
            self._recent[key] = found
            self._recent.move_to_end(key)
            if len(self._recent) > _NUM_RECENT:
                self._recent.popitem(last=False)
            return found

    def _start_thread(self) -> None:
        if self._num_threads < _NUM_THREADS:
            self._num_threads += 1
            threading.Thread(target=self._work, name="grammars", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._waiting.get().run(self._get_compiler)

    def _get_compiler(self) -> GrammarCompiler:
        with self._building:
            if self._compiler is None:
                self._compiler = self._make_compiler()
            return self._compiler
