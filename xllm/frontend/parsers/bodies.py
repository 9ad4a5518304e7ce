"""Readers of the call notations: JSON objects, named JSON, tagged parameters."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import msgspec

from xllm.frontend.parsers.format import Body, Draft
from xllm.frontend.parsers.json_text import read_value, stream_value
from xllm.frontend.parsers.source import BLANKS, Reading
from xllm.frontend.parsers.values import to_json, to_value

_NAME = re.compile(r"[\w.:/-]*")
_CLOSERS = re.compile(r"[}\] \t\r\n]*")
_NAME_KEYS = ("name",)
_ARGUMENT_KEYS = ("arguments", "parameters")


@dataclasses.dataclass(frozen=True)
class JsonCalls:
    """``{"name": ..., "arguments": {...}}``, several of them, or an array of such objects.

    The arguments may come as ``parameters``, or as a text that holds the JSON. Braces too many
    before the closing tag belong to nothing.
    """

    close: str = ""
    separator: str = ""  # between objects that are not in an array, where a model writes one

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read one object or array, and the closing tag if it is there."""
        source = draft.source
        yield from source.skip_blanks()
        if (yield from source.take("[")):
            read = yield from self._read_array(draft, bare)
        else:
            read = yield from _read_object(draft, bare)
            while read and draft.sink.complete:
                mark = source.hold()
                yield from source.skip_blanks()
                if self.separator and (yield from source.take(self.separator)):
                    mark = source.hold()
                    yield from source.skip_blanks()
                if not (yield from _read_object(draft, bare)):
                    source.rewind(mark)
                    break
        if read and draft.sink.complete and self.close:
            mark = source.hold()
            yield from source.span(_CLOSERS)
            if not (yield from source.take(self.close)):
                source.rewind(mark)
                yield from source.skip_blanks()
            source.release()
        return read

    def _read_array(self, draft: Draft, bare: bool) -> Reading[bool]:
        source = draft.source
        any_read = False
        while True:
            yield from source.skip_blanks()
            if not (yield from _read_object(draft, bare)):
                return any_read
            any_read = True
            if not draft.sink.complete:
                return True
            yield from source.skip_blanks()
            if (yield from source.take(",", "]")) != ",":
                return True


def _read_object(draft: Draft, bare: bool) -> Reading[bool]:
    source, sink = draft.source, draft.sink
    if not (yield from source.take("{")):
        return False
    name: str | None = None
    arguments: str | None = None
    opened = False
    while True:
        yield from source.skip_blanks()
        key = yield from _read_text(draft)
        yield from source.skip_blanks()
        if key is None or not (yield from source.take(":")):
            return opened
        yield from source.skip_blanks()
        if key in _NAME_KEYS:
            name = yield from _read_text(draft)
            if not name or (bare and not draft.knows(name)):
                return opened
        elif key in _ARGUMENT_KEYS and not opened and arguments is None:
            if (yield from source.peek()) == "{" and name is not None:
                draft.open_call(name)
                opened = True
                if not (yield from stream_value(source, sink.arguments)):
                    return True
                sink.close_call()
            else:
                arguments = _object_text((yield from read_value(source)))
                if arguments is None:
                    return opened
        elif (yield from read_value(source)) is None:
            return opened
        yield from source.skip_blanks()
        mark = yield from source.take(",", "}")
        if mark is None:
            return opened
        if mark == "}":
            break
    if opened:
        return True
    if name is None or (bare and arguments is None):
        return False
    draft.call(name, arguments or "{}")
    return True


def _read_text(draft: Draft) -> Reading[str | None]:
    if (yield from draft.source.peek()) != '"':
        return None
    text = yield from read_value(draft.source)
    return _decoded(text) if text is not None else None


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _object_text(text: str | None) -> str | None:
    """JSON text of arguments that may be null, or be given as a text themselves."""
    if text is None:
        return None
    value = _decoded(text)
    if isinstance(value, str):
        text, value = value, _decoded(value)
    if value is None:
        return "{}"
    return text if isinstance(value, dict) else None


@dataclasses.dataclass(frozen=True)
class NamedCall:
    """A name, a separator, a JSON object: ``name<sep>{...}<close>``."""

    prefix: str = ""
    separators: tuple[str, ...] = ()
    id_tag: str = ""  # comes between name and separator, followed by an id
    optional_separator: bool = False
    suffix: str = ""  # between the object and the closing tag
    close: str = ""
    name_is_id: bool = False  # ``functions.name:0`` is the id and holds the name

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read one call, and the closing tag if it is there."""
        source = draft.source
        yield from source.skip_blanks()
        if self.prefix and not (yield from source.take(self.prefix)):
            return False
        written = yield from source.span(_NAME)
        name, call_id = written, None
        if self.name_is_id:
            name, call_id = written.removeprefix("functions.").rpartition(":")[0], written
            name = name or written
        if not name:
            return False
        yield from source.skip_blanks()
        if self.id_tag and (yield from source.take(self.id_tag)):
            call_id = (yield from source.span(_NAME)) or None
        if not (yield from source.take(*self.separators)) and not self.optional_separator:
            return False
        yield from source.skip_blanks()
        ends = [end for end in (self.suffix, self.close) if end]
        if ends and (end := (yield from source.take(*ends))):  # no arguments at all
            draft.call(name, "{}", call_id)
            if self.close and end != self.close:
                yield from skip_to(draft, self.close)
            return True
        if (yield from source.peek()) != "{":
            return False
        draft.open_call(name, call_id)
        if not (yield from stream_value(source, draft.sink.arguments)):
            return True
        draft.sink.close_call()
        if self.suffix:
            yield from skip_to(draft, self.suffix)
        if self.close:
            yield from skip_to(draft, self.close)
        return True


@dataclasses.dataclass(frozen=True)
class TaggedCall:
    """A name and parameters between tags, whose values are plain text of the schema's types.

    The call is passed on when it is complete: an unfinished one comes back as prose.
    """

    open: str = ""  # before the name
    opens_alone: bool = False  # ``open`` may be the tag that was read already
    name_ends: tuple[str, ...] = ()  # after the name; none: white space or the next tag
    key_open: str = ""
    key_close: str = ""
    value_open: str = ""
    value_close: str = ""
    close: str = ""
    outer_close: str = ""  # after ``close``, where one tag holds one call
    typed: str = ""  # between the key and a flag that says whether the value is text
    line_values: bool = False  # a value stands on lines of its own
    begin: str = ""  # of a call in prose; where a value holds one, that one closes the value

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read one call, and the closing tag after it if it is there."""
        source = draft.source
        yield from source.skip_blanks()
        if self.open and not (yield from source.take(self.open)) and not self.opens_alone:
            return False
        name = yield from source.span(_NAME)
        if not name or (self.name_ends and not (yield from source.take(*self.name_ends))):
            return False
        values: dict[str, Any] = {}
        while True:
            yield from source.skip_blanks()
            mark = yield from source.take(self.key_open, self.close)
            if mark is None:
                return False
            if mark == self.close:
                break
            if not (yield from self._read_parameter(draft, name, values)):
                return False
        draft.call(name, to_json(values))
        if self.outer_close:
            yield from skip_to(draft, self.outer_close)
        return True

    def _read_parameter(self, draft: Draft, name: str, values: dict[str, Any]) -> Reading[bool]:
        source = draft.source
        found = yield from source.until(self.key_close)
        if found is None:
            return False
        key, flag = found[0].strip(), ""
        if self.typed:
            key, _, flag = key.partition(self.typed)
        if self.value_open:
            yield from source.skip_blanks()
            if not (yield from source.take(self.value_open)):
                return False
        found = yield from source.until(self.value_close)
        if found is None:
            return False
        text = found[0]
        # The closing tag is another call's: that one stands for itself, and this one is torn.
        if self.begin and self.begin in text and _begun_call(self).search(text):
            return False
        if self.line_values:
            text = text.removeprefix("\n").removesuffix("\n")
        schema = {"type": "string"} if flag == "true" else draft.parameter(name, key)
        values[key] = to_value(text, None if flag == "false" else schema)
        return True


@functools.cache
def _begun_call(form: TaggedCall) -> re.Pattern[str]:
    """A call of this form up to its first value."""
    name_open = "" if form.open == form.begin else form.open
    begin, name_open, key_open, key_close, value_open = map(
        re.escape, (form.begin, name_open, form.key_open, form.key_close, form.value_open)
    )
    name_end = "|".join(map(re.escape, form.name_ends))
    blanks = f"[{BLANKS}]*+"  # given back to no neighbour: linear, however many there are
    name_end = name_end and f"(?:{name_end})"
    key = key_open + "[^<>]*" + key_close
    parts = (begin, name_open, _NAME.pattern, name_end, key, value_open)
    return re.compile(blanks.join(part for part in parts if part))


@dataclasses.dataclass(frozen=True)
class Section:
    """Several calls, each after a tag of its own, in one frame."""

    begin: str
    call: Body
    close: tuple[str, ...] = ()

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read calls as long as they follow each other, and the closing tag if it is there."""
        yield from draft.source.skip_blanks()
        if not (yield from draft.source.take(self.begin)):
            return False
        return (yield from self.read_on(draft, bare))

    def read_on(self, draft: Draft, bare: bool) -> Reading[bool]:
        """As ``read``, from where the tag of a call was read."""
        source = draft.source
        draft.torn = None
        any_read = False
        while True:
            hold = source.hold() if any_read else 0
            if not (yield from self.call.read(draft, bare)):
                draft.torn = self
                if any_read:
                    source.rewind(hold)
                    draft.sink.content(self.begin)
                return any_read
            any_read = True
            if not draft.sink.complete:
                return True
            yield from source.skip_blanks()
            if (yield from source.take(self.begin, *self.close)) != self.begin:
                return True


def skip_to(draft: Draft, close: str) -> Reading[None]:
    """Read white space and a closing tag, if that is what comes."""
    yield from draft.source.skip_blanks()
    yield from draft.source.take(close)
