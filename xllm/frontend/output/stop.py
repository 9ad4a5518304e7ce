"""Stop strings, matched on a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text once it can no longer be part of a stop string.

    Which stop matches depends on the text alone, never on how it was cut into pieces: the one
    that is complete first; of several complete at the same character, the longest.

    Args:
        stops: non-empty strings.
        include: whether the matched stop string belongs to the text.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""  # shorter than the longest stop
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what may be shown. After a match nothing more may be pushed."""
        assert self.matched is None
        buffer = self._held + text
        end, stop = min(
            ((at + len(stop), stop) for stop in self._stops if (at := buffer.find(stop)) >= 0),
            key=lambda match: (match[0], -len(match[1])),
            default=(0, None),
        )
        if stop is not None:
            self.matched = stop
            self._held = ""
            return buffer[: end if self._include else end - len(stop)]
        keep = self._possible_start(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """What is still held back, once nothing can follow."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, buffer: str) -> int:
        """Length of the longest end of ``buffer`` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
