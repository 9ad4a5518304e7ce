"""What a format is: data that says which tags it has and which reader knows its inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from xllm.frontend.parsers.sink import Sink
from xllm.frontend.parsers.source import Reading, Source
from xllm.frontend.parsers.values import Schema

FormatT = TypeVar("FormatT")


@dataclasses.dataclass(slots=True)
class Draft:
    """A message while it is read: the text, what was found, and the tools that may be called."""

    source: Source
    sink: Sink
    tools: Mapping[str, Schema]  # parameters by function name
    torn: CallSection | None = None  # a section where a call came to nothing; others may follow

    def open_call(self, name: str, call_id: str | None = None) -> None:
        """A call begins; there is no way back to reading it as prose."""
        self.source.release()
        self.sink.open_call(name, call_id)

    def call(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """A whole call."""
        self.source.release()
        self.sink.call(name, arguments, call_id)

    def knows(self, name: str) -> bool:
        """Whether there is such a tool."""
        return name in self.tools

    def parameter(self, function: str, name: str) -> Schema | None:
        """Schema of one parameter of a function, as far as it is known."""
        properties = self.tools.get(function, {}).get("properties")
        return properties.get(name) if isinstance(properties, Mapping) else None


class Body(Protocol):
    """Reads the calls that follow an opening tag."""

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read calls into the draft.

        Args:
            draft: stands right after the tag, or at the start of a message without one.
            bare: there was no tag, so that the calls must be of known tools.

        Returns:
            False when this is no call; nothing was put into the draft then.
        """


class CallSection(Body, Protocol):
    """Reads calls that have a tag each, in a frame; sets ``Draft.torn`` where one is none."""

    @property
    def begin(self) -> str:
        """The tag of each call."""
        ...

    @property
    def close(self) -> tuple[str, ...]:
        """Tags that end the frame."""
        ...

    def read_on(self, draft: Draft, bare: bool) -> Reading[bool]:
        """As ``read``, from where the tag of a call was read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How one family of models writes tool calls.

    Models that are asked to pick a parser by themselves are recognized by ``template``: texts that
    their chat templates contain, all of them; else by ``model_types``.
    """

    opens: tuple[str, ...] = ()  # tags that begin calls anywhere in the answer
    body: Body
    bare: str = ""  # characters that begin a call at the start of an answer, without a tag
    short_ids: bool = False  # ids are nine letters and digits
    template: tuple[tuple[str, ...], ...] = ()  # any of these sets
    model_types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How one family of models writes its thoughts before the answer."""

    pairs: tuple[tuple[str, str], ...]  # opening and closing tag
    implied: bool = False  # an answer begins with thoughts even where nobody wrote the tag
    eager: bool = False  # an answer begins with the opening tag unless the prompt closes it
    until_calls: bool = False  # a tool call ends the thoughts too
    wraps: tuple[str, ...] = ()  # tags around the answer, which are no part of it
    template: tuple[tuple[str, ...], ...] = ()
    model_types: tuple[str, ...] = ()


def respelled(value: FormatT, change: Callable[[str], str]) -> FormatT:
    """The same format, or part of one, with every text changed."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, tuple):
        changed = tuple(respelled(each, change) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: respelled(getattr(value, field.name), change)
            for field in dataclasses.fields(value)
            if field.name not in ("template", "model_types")
        }
        changed = dataclasses.replace(value, **fields)
    return cast("FormatT", changed)


def texts_of(value: object) -> list[str]:
    """Every text of a format."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    respelled(value, note)
    return found
