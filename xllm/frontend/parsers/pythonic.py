"""Calls written as Python: ``[find(q='a', n=3), ping()]``. Read by hand, never evaluated."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from xllm.frontend.parsers.bodies import skip_to
from xllm.frontend.parsers.format import Draft
from xllm.frontend.parsers.source import Reading, Source
from xllm.frontend.parsers.values import to_json

_MAX_DEPTH = 32
_NAME = re.compile(r"[\w.-]*")
_ATOM = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_BASED = re.compile(r"[-+]?0([xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class _Malformed(Exception):
    """The text is no Python literal."""


@dataclasses.dataclass(frozen=True)
class PythonicCalls:
    """A list of calls with keyword arguments. All of it is right, or none of it is a call."""

    close: str = ""

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read the list, and the closing tag if it is there."""
        try:
            calls = yield from _calls(draft, bare)
        except _Malformed:
            return False
        for name, values in calls:
            draft.call(name, to_json(values))
        if self.close:
            yield from skip_to(draft, self.close)
        return True


def _calls(draft: Draft, bare: bool) -> Reading[list[tuple[str, dict[str, Any]]]]:
    source = draft.source
    calls = []
    yield from _expect(source, "[")
    while True:
        name = yield from _word(source, _NAME)
        if not name or (bare and not draft.knows(name)):
            raise _Malformed
        yield from _expect(source, "(")
        calls.append((name, (yield from _keywords(source))))
        if (yield from _expect(source, ",", "]")) == "]":
            return calls


def _keywords(source: Source) -> Reading[dict[str, Any]]:
    values: dict[str, Any] = {}
    yield from source.skip_blanks()
    while not (yield from source.take(")")):
        name = yield from _word(source, _NAME)
        if not name:
            raise _Malformed
        yield from _expect(source, "=")
        values[name] = yield from _value(source, 0)
        if (yield from _expect(source, ",", ")")) == ")":
            break
        yield from source.skip_blanks()
    return values


def _value(source: Source, depth: int) -> Reading[Any]:
    if depth > _MAX_DEPTH:
        raise _Malformed
    yield from source.skip_blanks()
    opened = yield from source.take('"', "'", '"""', "'''", "[", "(", "{")
    if opened is None:
        return _atom((yield from source.span(_ATOM)))
    if opened == "{":
        return (yield from _dict(source, depth))
    if opened in "[(":
        return (yield from _list(source, "]" if opened == "[" else ")", depth))
    return (yield from _texts(source, opened))


def _atom(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    text = re.sub(r"(?<=\w)_(?=\w)", "", text)
    if len(text) > 100:
        raise _Malformed
    if _BASED.fullmatch(text):
        text = str(int(text, 0))
    if not _NUMBER.fullmatch(text):
        raise _Malformed
    number = float(text)
    is_whole = text.lstrip("+-").isdigit()
    return int(text) if is_whole and abs(number) < 2**63 else number


def _list(source: Source, close: str, depth: int) -> Reading[list[Any]]:
    values = []
    yield from source.skip_blanks()
    while not (yield from source.take(close)):
        values.append((yield from _value(source, depth + 1)))
        if (yield from _expect(source, ",", close)) == close:
            break
        yield from source.skip_blanks()
    return values


def _dict(source: Source, depth: int) -> Reading[dict[str, Any]]:
    values: dict[str, Any] = {}
    yield from source.skip_blanks()
    while not (yield from source.take("}")):
        key = yield from _value(source, depth + 1)
        yield from _expect(source, ":")
        value = yield from _value(source, depth + 1)
        values[key if isinstance(key, str) else to_json(key)] = value
        if (yield from _expect(source, ",", "}")) == "}":
            break
        yield from source.skip_blanks()
    return values


def _texts(source: Source, quote: str) -> Reading[str]:
    """A text, and those that follow it at once, which belong to it."""
    parts = [(yield from _string(source, quote))]
    while True:
        yield from source.skip_blanks()
        following = yield from source.take('"', "'", '"""', "'''")
        if following is None:
            return "".join(parts)
        parts.append((yield from _string(source, following)))


def _string(source: Source, quote: str) -> Reading[str]:
    parts: list[str] = []
    while True:
        found = yield from source.until(quote, "\\")
        if found is None:
            raise _Malformed
        parts.append(found[0])
        if found[1] == quote:
            return "".join(parts)
        parts.append((yield from _escape(source)))


def _escape(source: Source) -> Reading[str]:
    char = yield from source.peek()
    source.pos += len(char)
    if char not in _HEX_DIGITS:
        return _ESCAPES.get(char, char if char in "'\"\\" else "\\" + char)
    digits = ""
    while len(digits) < _HEX_DIGITS[char]:
        digit = yield from source.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise _Malformed
        digits += digit
        source.pos += 1
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _Malformed
    return chr(code)


def _word(source: Source, run: re.Pattern[str]) -> Reading[str]:
    yield from source.skip_blanks()
    return (yield from source.span(run))


def _expect(source: Source, *literals: str) -> Reading[str]:
    yield from source.skip_blanks()
    found = yield from source.take(*literals)
    if found is None:
        raise _Malformed
    return found
