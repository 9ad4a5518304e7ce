"""Compiled grammars by content, made on threads that nobody has to wait for."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from xllm.core.grammar.compiler import (
    Grammar,
    GrammarCompiler,
    GrammarError,
    estimate_bytes,
)
from xllm.core.observability.logging import get_logger
from xllm.core.request.structured import StructuredOutput

logger = get_logger(__name__)

_NUM_RECENT = 256
# Memory of all grammars that are known, in use or not; see ``Compilation.num_bytes``.
_MAX_BYTES = 512 << 20
_NUM_THREADS = 2
# The library follows rules and references by recursion: up to 8 kB a level were seen, and intake
# lets 4096 of them through. Only what is used of a stack takes memory.
_STACK_BYTES = 64 << 20
# A lane more for so many requests (the scheduler and the worker ask once for each), as long as
# compiling is quick: a lane costs that again, and a lexer.
_ASKED_PER_LANE = 16
_LANE_SECONDS = 0.05


class _Entry:
    """One grammar on its way, and how much it is asked for."""

    def __init__(self, output: StructuredOutput) -> None:
        self.output = output
        self.future: Future[Grammar] = Future()
        self.num_asked = 0
        self._tending = False  # for ever once that has failed
        self._begun: float | None = None  # time.monotonic()

    @property
    def running_seconds(self) -> float:
        """How long it has been compiled so far; 0 while it waits for its turn."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, or will once it is compiled, by estimate."""
        if not self.future.done():
            return estimate_bytes(self.output)
        if self.future.exception() is not None:
            return estimate_bytes(self.output, 0)
        grammar = self.future.result()
        return estimate_bytes(self.output, grammar.num_lanes, grammar.num_tokens)

    def run(self, get_compiler: Callable[[], GrammarCompiler], max_lanes: int) -> None:
        """Compile, with as many lanes as are wanted by now; never raises."""
        self._begun = time.monotonic()
        try:
            compiler = get_compiler()
            grammar = compiler.compile(self.output)
            if max_lanes:
                self._add_lanes(compiler, grammar, max_lanes)
            else:
                grammar.replace_lanes([])
        except GrammarError as error:
            # Not ``error`` itself: its frames would hold this compilation, which holds it.
            self.future.set_exception(GrammarError(str(error)))
        except BaseException as error:  # a panic of the library is no Exception
            logger.exception("a grammar could not be compiled")
            self.future.set_exception(
                GrammarError(f"the grammar compiler failed: {type(error).__name__}")
            )
        else:
            self.future.set_result(grammar)

    def ask(self, max_lanes: int) -> bool:
        """Count one use; whether ``tend`` should be called for it."""
        self.num_asked += 1
        if self._tending or not self.future.done() or self.future.exception() is not None:
            return False
        grammar = self.future.result()
        self._tending = grammar.worn or self._lacks_lanes(grammar, max_lanes)
        return self._tending

    def tend(self, get_compiler: Callable[[], GrammarCompiler], max_lanes: int) -> None:
        """Make a worn grammar anew and add the lanes that it lacks; never raises."""
        try:
            compiler, grammar = get_compiler(), self.future.result()
            if grammar.worn:
                compiler.renew(grammar, self.output)
            self._add_lanes(compiler, grammar, max_lanes)
        except BaseException:
            logger.exception("a grammar could not be compiled once more; it stays as it is")
        else:
            self._tending = False

    def _add_lanes(self, compiler: GrammarCompiler, grammar: Grammar, max_lanes: int) -> None:
        while self._lacks_lanes(grammar, max_lanes):
            compiler.widen(grammar, self.output)

    def _lacks_lanes(self, grammar: Grammar, max_lanes: int) -> bool:
        wanted = min(max_lanes, 1 + self.num_asked // _ASKED_PER_LANE)
        return 0 < grammar.num_lanes < wanted and grammar.seconds < _LANE_SECONDS


class Compilation:
    """A hold on one grammar: the cache keeps it as long as somebody has this."""

    def __init__(self, entry: _Entry) -> None:
        self.entry = entry

    @property
    def future(self) -> Future[Grammar]:
        """The compiled grammar, or ``GrammarError``."""
        return self.entry.future

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be used; only asked once ``future`` is done."""
        failure = self.future.exception()
        return None if failure is None else str(failure)

    @property
    def running_seconds(self) -> float:
        """How long it has been compiled so far; 0 while it waits for its turn."""
        return self.entry.running_seconds

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, or will once it is compiled, by estimate."""
        return self.entry.num_bytes

    def run(self, get_compiler: Callable[[], GrammarCompiler], max_lanes: int) -> None:
        """``_Entry.run``, held meanwhile."""
        self.entry.run(get_compiler, max_lanes)

    def tend(self, get_compiler: Callable[[], GrammarCompiler], max_lanes: int) -> None:
        """``_Entry.tend``, held meanwhile."""
        self.entry.tend(get_compiler, max_lanes)


_Key = tuple[str, str, bool]
_Work = Callable[[Callable[[], GrammarCompiler], int], None]  # ``run`` or ``tend``


class GrammarCache:
    """Compiles each grammar once, and remembers the last ``_NUM_RECENT`` of them, or as many as
    fit into ``max_bytes`` beside those that somebody holds.

    Threads are daemons and start on first use: a process that never meets a grammar pays nothing,
    and one that ends does not wait for a compilation.

    Args:
        make_compiler: builds the compiler, on a thread of the cache, when first needed.
        max_lanes: threads that will fill masks; 0 where grammars are only checked, of which nothing
            but the verdict is kept.
    """

    def __init__(
        self,
        make_compiler: Callable[[], GrammarCompiler],
        max_lanes: int = 1,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._make_compiler = make_compiler
        self._max_lanes = max_lanes
        self._max_bytes = max_bytes
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._held: weakref.WeakValueDictionary[_Key, Compilation] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[_Key, _Entry] = OrderedDict()  # held or not
        self._num_holds = 0  # ever given out; with those there are, it tells whether any has gone
        self._refused: tuple[_Key, int, int] | None = None
        self._waiting: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._num_threads = 0

    def submit(self, output: StructuredOutput) -> Compilation:
        """The grammar's compilation: begun now, under way or done already."""
        key = output.grammar_key
        with self._lock:
            found = self._held.get(key)
            entry = self._recent.get(key) if found is None else found.entry
            is_new = entry is None
            if entry is None:
                entry = _Entry(output)
            if found is None:
                found = self._held[key] = Compilation(entry)
                self._num_holds += 1
            if is_new:
                self._waiting.put(found.run)
                self._start_thread()
            if entry.ask(self._max_lanes):
                self._waiting.put(found.tend)
            self._recent[key] = entry
            self._recent.move_to_end(key)
            if is_new:
                self._forget(self.num_bytes - self._max_bytes)
            return found

    def has_room(self, output: StructuredOutput) -> bool:
        """Whether a grammar fits in beside those that are held; forgets others if that helps.

        What was refused is looked at again once a grammar came or went: asking is cheap until then.
        """
        key = output.grammar_key
        with self._lock:
            if key in self._recent or key in self._held:
                return True
            asked = (key, self._num_holds, len(self._held))
            if asked == self._refused:
                return False
            excess_bytes = self.num_bytes + estimate_bytes(output) - self._max_bytes
            if excess_bytes > sum(self._recent[key].num_bytes for key in self._unheld()):
                self._refused = asked
                return False
            self._forget(excess_bytes)
            return True

    def check(self) -> None:
        """Assert that no more is remembered than may be."""
        with self._lock:
            assert len(self._recent) <= _NUM_RECENT, len(self._recent)
            held = [(key, found.entry) for key, found in self._held.items()]
            assert all(self._recent.get(key, entry) is entry for key, entry in held)

    def __len__(self) -> int:
        """Grammars that are held or remembered."""
        return len(self._known())

    @property
    def num_bytes(self) -> int:
        """Memory of all grammars that are held or remembered, by estimate."""
        return sum(entry.num_bytes for entry in self._known().values())

    def _known(self) -> dict[_Key, _Entry]:
        held = {key: found.entry for key, found in list(self._held.items())}
        return held | self._recent

    def _unheld(self) -> list[_Key]:
        """Grammars that nobody holds; the one that was not used for longest comes first."""
        return [key for key in self._recent if key not in self._held]

    def _forget(self, excess_bytes: int) -> None:
        """Give back that much, as far as grammars are not held, and those that are too many."""
        for key in self._unheld():
            if excess_bytes <= 0:
                break
            excess_bytes -= self._recent.pop(key).num_bytes
        while len(self._recent) > _NUM_RECENT:
            self._recent.popitem(last=False)

    def _start_thread(self) -> None:
        if self._num_threads < _NUM_THREADS:
            self._num_threads += 1
            usual = threading.stack_size(_STACK_BYTES)
            try:
                threading.Thread(target=self._work, name="grammars", daemon=True).start()
            finally:
                threading.stack_size(usual)

    def _work(self) -> None:
        while True:
            self._waiting.get()(self._get_compiler, self._max_lanes)

    def _get_compiler(self) -> GrammarCompiler:
        with self._building:
            if self._compiler is None:
                self._compiler = self._make_compiler()
            return self._compiler
