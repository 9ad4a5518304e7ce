"""Stop strings, matched on a text that arrives in pieces."""

from __future__ import annotations

import array
import functools
import threading
from collections.abc import Sequence


class StopMatcher:
    """Releases text once it can no longer be part of a stop string.

    Which stop matches depends on the text alone, never on how it was cut into pieces: the one
    that is complete first; of several complete at the same character, the longest.

    The work is linear in the text, whatever text and stops are: this runs on the event loop.

    Args:
        stops: non-empty strings.
        include: whether the matched stop string belongs to the text.
    """

    __slots__ = ("_held", "_include", "_lengths", "_patterns", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._patterns = [_pattern(stop) for stop in stops]
        # How much of each stop the text so far ends with.
        self._lengths = [0] * len(self._patterns)
        self._include = include
        self._held = ""  # as long as the longest of those
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what may be shown. After a match nothing more may be pushed."""
        assert self.matched is None
        end = 0
        matched = None
        lengths = self._lengths
        for i, pattern in enumerate(self._patterns):
            length, stop_end = pattern.advance(lengths[i], text)
            lengths[i] = length
            if length < len(pattern.stop):
                continue
            if matched is None or (stop_end, -length) < (end, -len(matched)):
                end, matched = stop_end, pattern.stop
        buffer = self._held + text
        if matched is not None:
            self.matched = matched
            end += len(self._held)
            self._held = ""
            return buffer[: end if self._include else end - len(matched)]
        start = len(buffer) - max(lengths)
        self._held = buffer[start:]
        return buffer[:start]

    def flush(self) -> str:
        """What is still held back, once nothing can follow."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """One stop string for a search that never looks at a character of the text again.

    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
    The table grows only as far as texts have matched: most stops are long and hardly begin.
    """

    __slots__ = ("_borders", "_lock", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        # Entry i: the longest proper end of stop[: i + 1] that is also its beginning.
        self._borders = array.array("I", [0])
        self._lock = threading.Lock()  # patterns are shared, between threads too

    def advance(self, length: int, text: str) -> tuple[int, int]:
        """How much of the stop the text ends with, after a text that ended with ``length`` of it.

        Returns:
            That, and the whole text's length; or, where the stop is complete, its length and the
            place in the text that follows it.
        """
        stop = self.stop
        begin = 0 if length else text.find(stop[0])
        if begin < 0:
            return 0, len(text)
        borders = self._borders
        for at in range(begin, len(text)):
            char = text[at]
            while length and stop[length] != char:
                length = borders[length - 1]
            if stop[length] == char:
                length += 1
                if length == len(stop):
                    return length, at + 1
                if length > len(borders):
                    self._extend(length)
        return length, len(text)

    def _extend(self, length: int) -> None:
        stop, borders = self.stop, self._borders
        with self._lock:
            while len(borders) < length:
                char = stop[len(borders)]
                border = borders[-1]
                while border and stop[border] != char:
                    border = borders[border - 1]
                borders.append(border + (stop[border] == char))


@functools.lru_cache(maxsize=1024)
def _pattern(stop: str) -> _Pattern:
    return _Pattern(stop)
