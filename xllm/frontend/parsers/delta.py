"""What a parser makes of a piece of an answer."""

from __future__ import annotations

import dataclasses
from typing import Protocol


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
class Parsed:
    """What a piece of text turned out to be. At most one entry per call in ``tool_calls``."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = dataclasses.field(default_factory=list)

    def __iadd__(self, later: Parsed) -> Parsed:
        """Append what followed."""
        self.content += later.content
        self.reasoning += later.reasoning
        for call in later.tool_calls:
            if self.tool_calls and self.tool_calls[-1].index == call.index:
                self.tool_calls[-1].arguments += call.arguments
            else:
                self.tool_calls.append(call)
        return self


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
