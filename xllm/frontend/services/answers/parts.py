"""An answer as the sequence of its parts: thoughts, texts and calls, each opened, grown, closed."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.parsers import TextDelta


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """A stretch of one kind. ``text`` is what it holds so far; of a call, its JSON arguments."""

    index: int
    kind: Literal["reasoning", "text", "call"]
    call_id: str = ""
    name: str = ""
    text: str = ""
    call_index: int = -1


class Change(NamedTuple):
    """What happened to a part; ``text`` is what a growing one gained."""

    what: Literal["open", "grow", "close"]
    part: Part
    text: str = ""


class AnswerParts:
    """Turns the news of one choice into changes of parts. At most the last part is open."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._open: Part | None = None

    def feed(self, delta: ChoiceDelta) -> list[Change]:
        """Changes that a delta brings."""
        changes: list[Change] = []
        if delta.text and not delta.pieces:  # nobody has parsed it
            self._grow(changes, Part(len(self.parts), "text"), delta.text)
        for piece in delta.pieces:
            if isinstance(piece, TextDelta):
                kind: Literal["reasoning", "text"] = (
                    "reasoning" if piece.kind == "reasoning" else "text"
                )
                self._grow(changes, Part(len(self.parts), kind), piece.text)
            else:
                fresh = Part(
                    *(len(self.parts), "call", piece.id or "", piece.name or ""),
                    call_index=piece.index,
                )
                self._grow(changes, fresh, piece.arguments)
        if delta.finish_reason is not None:
            self._close(changes)
        return changes

    def _grow(self, changes: list[Change], fresh: Part, text: str) -> None:
        """Add text to the open part, if it is such a one, or else to a fresh one."""
        part = self._open
        if part is None or (part.kind, part.call_index) != (fresh.kind, fresh.call_index):
            self._close(changes)
            fresh.index = len(self.parts)
            part = self._open = fresh
            self.parts.append(part)
            changes.append(Change("open", part))
        if text:
            part.text += text
            changes.append(Change("grow", part, text))

    def _close(self, changes: list[Change]) -> None:
        if self._open is not None:
            changes.append(Change("close", self._open))
            self._open = None
