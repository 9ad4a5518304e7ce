"""Requests whose grammar is being compiled: they wait for a row only once that is done."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from xllm.control.scheduler.sequence import RequestState, Status
from xllm.control.scheduler.state import SchedulerState
from xllm.core.grammar import GrammarCache
from xllm.core.messages.server import Failure
from xllm.core.request.request import Request

_FIELD = "structured_outputs"


class GrammarQueue:
    """Holds requests back, and fails those whose grammar turns out to be unusable.

    A request holds its grammar to its end. Grammars of those that wait are compiled ahead only as
    far as memory allows.

    Args:
        grammars: compiles on its own threads; None refuses every grammar.
    """

    def __init__(self, state: SchedulerState, grammars: GrammarCache | None) -> None:
        self._state = state
        self._grammars = grammars
        self._held: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def pending(self) -> list[Future[Any]]:
        """What the held requests wait for."""
        return [entry.grammar.future for entry in self._held if entry.grammar is not None]

    def refusal(self, request: Request) -> Failure | None:
        """Why a request with a grammar cannot be served at all, or None."""
        if request.structured_output is None or self._grammars is not None:
            return None
        return Failure(request.handle, -1, f"{_FIELD} is not supported by this engine", 400, _FIELD)

    def enqueue(self, entry: RequestState) -> None:
        """Let the leader of a new request wait for its turn, if need be for its grammar first."""
        output = entry.request.structured_output
        if output is not None:
            entry.live[entry.leader].status = Status.COMPILING
            self._held.append(entry)
        else:
            self._state.queue.push(entry.live[entry.leader])

    def release(self) -> None:
        """Let those go on whose grammar is compiled, and end those whose grammar is not one."""
        if not self._held:
            return
        held, self._held = [entry for entry in self._held if entry.live], []
        # With nothing else alive, the first may be compiled however large it is.
        alone = len(held) == len(self._state.requests) and all(e.grammar is None for e in held)
        has_room = True
        for entry in held:
            if entry.grammar is None and has_room:
                has_room = self._begin(entry, alone)
                alone = False
            if entry.grammar is None or not entry.grammar.future.done():
                self._held.append(entry)
            elif entry.grammar.error is None:
                self._state.queue.push(entry.live[entry.leader])
            else:
                self._fail(entry, entry.grammar.error)

    def check(self) -> None:
        """Assert that those are held whose leader waits for a grammar."""
        sequences = [seq for entry in self._state.requests.values() for seq in entry.live.values()]
        compiling = sorted(seq.handle for seq in sequences if seq.status is Status.COMPILING)
        assert compiling == sorted(entry.request.handle for entry in self._held if entry.live)

    def _begin(self, entry: RequestState, alone: bool) -> bool:
        """Have a grammar compiled, if memory allows; later requests do not overtake."""
        output = entry.request.structured_output
        assert self._grammars is not None and output is not None
        if not (alone or self._grammars.has_room(output)):
            return False
        entry.grammar = self._grammars.submit(output)
        return True

    def _fail(self, entry: RequestState, problem: str) -> None:
        message = f"{_FIELD} was refused: {problem}"
        self._state.notices.failures.append(Failure(entry.request.handle, -1, message, 400, _FIELD))
        for sequence in list(entry.live.values()):
            self._state.finish(sequence)
