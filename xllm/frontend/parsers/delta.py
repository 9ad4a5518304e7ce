"""What a parser makes of a piece of an answer."""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol


@dataclasses.dataclass(slots=True)
class ToolCallDelta:
    """A piece of a tool call.

    ``id`` and ``name`` come with a call's first piece only; ``arguments`` joined over all pieces is
    one JSON object.
    """

    index: int  # of the call in its message
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclasses.dataclass(slots=True)
class TextDelta:
    """A piece of the thoughts or of the answer."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclasses.dataclass(slots=True)
class Parsed:
    """What a piece of text turned out to be, in the order in which it was written.

    Neighbours are unlike: no two texts of a kind, no two pieces of a call.
    """

    pieces: list[TextDelta | ToolCallDelta] = dataclasses.field(default_factory=list)

    @property
    def content(self) -> str:
        """All of the answer's text."""
        return self._text("content")

    @property
    def reasoning(self) -> str:
        """All of the thoughts."""
        return self._text("reasoning")

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        """The calls."""
        return [piece for piece in self.pieces if isinstance(piece, ToolCallDelta)]

    def add(self, piece: TextDelta | ToolCallDelta) -> None:
        """Append a piece, which belongs to this object from now on."""
        last = self.pieces[-1] if self.pieces else None
        if isinstance(piece, ToolCallDelta):
            if isinstance(last, ToolCallDelta) and last.index == piece.index:
                last.arguments += piece.arguments
                return
        elif isinstance(last, TextDelta) and last.kind == piece.kind:
            last.text += piece.text
            return
        elif not piece.text:
            return
        self.pieces.append(piece)

    def __iadd__(self, later: Parsed) -> Parsed:
        """Append what followed."""
        for piece in later.pieces:
            self.add(piece)
        return self

    def _text(self, kind: str) -> str:
        return "".join(p.text for p in self.pieces if isinstance(p, TextDelta) and p.kind == kind)


class MessageParser(Protocol):
    """Reads one choice's text as it comes.

    All results of a text, concatenated, are the same however the text was cut into pieces.
    """

    @property
    def called(self) -> bool:
        """Whether there was a tool call and every one is complete."""

    def feed(self, text: str) -> Parsed:
        """Take the next piece; what cannot be told yet is kept back."""

    def finish(self) -> Parsed:
        """The text has ended: release what was kept back."""
