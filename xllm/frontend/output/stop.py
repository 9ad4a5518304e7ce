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
        end = 0
        matched = None
        for stop in self._stops:
            at = buffer.find(stop)
            if at < 0:
                continue
            stop_end = at + len(stop)
            if matched is None or (stop_end, -len(stop)) < (end, -len(matched)):
                end, matched = stop_end, stop
        if matched is not None:
            self.matched = matched
            self._held = ""
            return buffer[: end if self._include else end - len(matched)]
        start = self._possible_start(buffer)
        self._held = buffer[start:]
        return buffer[:start]

    def flush(self) -> str:
        """What is still held back, once nothing can follow."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, buffer: str) -> int:
        """Where the longest end of ``buffer`` that begins a stop string starts."""
        first = len(buffer)
        for stop in self._stops:
            at = buffer.find(stop[0], max(0, len(buffer) - len(stop) + 1), first)
            while at >= 0 and not stop.startswith(buffer[at:]):
                at = buffer.find(stop[0], at + 1, first)
            if at >= 0:
                first = at
        return first
