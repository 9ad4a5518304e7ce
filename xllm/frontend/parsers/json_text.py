"""JSON that arrives in pieces: passed on as far as it is valid, checked to the letter."""

from __future__ import annotations

import re
from collections.abc import Callable

from xllm.frontend.parsers.source import Reading, Source

_MAX_DEPTH = 64
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ATOM = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_TOKEN = re.compile(r'[ \t\r\n]*([{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+)')
_WORDS = ("true", "false", "null")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEX = frozenset("0123456789abcdefABCDEF")


def read_value(source: Source) -> Reading[str | None]:
    """The text of the JSON value that comes next; None if it is broken or unfinished."""
    parts: list[str] = []
    whole = yield from stream_value(source, parts.append)
    return "".join(parts) if whole else None


def whole_members(text: str) -> str:
    """JSON of what is complete in the beginning of an object.

    A member whose value is broken off inside a text or before it began is left out; of one that is
    broken off inside an array or object, what is complete there is kept. That is how clients of
    event streams read arguments that were cut.
    """
    closers: list[str] = []
    before, end, closing = "", 0, "{}"
    pos = 0
    while (match := _TOKEN.match(text, pos)) is not None:
        token, pos = match[1], match.end()
        if token in "{[":
            closers.append("}" if token == "{" else "]")
        elif token in "}]":
            closers.pop()
        if token not in ",:" and not (before in "{," and closers[-1:] == ["}"] and token[0] == '"'):
            end, closing = pos, "".join(reversed(closers))
        before = token
    return text[:end] + closing


def stream_value(source: Source, emit: Callable[[str], None], depth: int = 0) -> Reading[bool]:
    """Pass on the JSON value that comes next, piece by piece.

    What was passed on is always the beginning of a valid value. Line breaks and other control
    characters that a model wrote plainly into a string are escaped.

    Returns:
        True when the value is complete; False when it is broken (the source stands before the
        first character that does not fit) or the text has ended.
    """
    first = yield from source.peek()
    if first == '"':
        return (yield from _stream_string(source, emit))
    if first and first in "{[" and depth < _MAX_DEPTH:
        return (yield from _stream_container(source, emit, first == "{", depth))
    atom = yield from source.span(_ATOM)
    if atom in _WORDS or _NUMBER.fullmatch(atom):
        emit(atom)
        return True
    source.pos -= len(atom)
    return False


def _stream_container(
    source: Source, emit: Callable[[str], None], is_object: bool, depth: int
) -> Reading[bool]:
    close = "}" if is_object else "]"
    emit(source.text[source.pos])
    source.pos += 1
    yield from _pass_blanks(source, emit)
    if (yield from source.take(close)):
        emit(close)
        return True
    while True:
        if is_object:
            if (yield from source.peek()) != '"' or not (yield from _stream_string(source, emit)):
                return False
            yield from _pass_blanks(source, emit)
            if not (yield from source.take(":")):
                return False
            emit(":")
            yield from _pass_blanks(source, emit)
        if not (yield from stream_value(source, emit, depth + 1)):
            return False
        yield from _pass_blanks(source, emit)
        mark = yield from source.take(",", close)
        if mark is None:
            return False
        emit(mark)
        if mark == close:
            return True
        yield from _pass_blanks(source, emit)


def _stream_string(source: Source, emit: Callable[[str], None]) -> Reading[bool]:
    emit('"')
    source.pos += 1
    while (yield from source.more()):
        match = _PLAIN.match(source.text, source.pos)
        assert match is not None
        if match[0]:
            emit(match[0])
            source.pos = match.end()
            continue
        char = source.text[source.pos]
        if char == '"':
            emit(char)
            source.pos += 1
            return True
        if char == "\\":
            escape = yield from _escape(source)
            if escape is None:
                return False
            emit(escape)
        else:
            emit(_ESCAPES.get(char) or f"\\u{ord(char):04x}")
            source.pos += 1
    return False


def _escape(source: Source) -> Reading[str | None]:
    """An escape sequence, whole; None if it is none."""
    while len(source.text) < source.pos + 2:
        if source.ended:
            return None
        yield
    kind = source.text[source.pos + 1]
    length = 6 if kind == "u" else 2
    while len(source.text) < source.pos + length:
        if source.ended:
            return None
        yield
    found = source.text[source.pos : source.pos + length]
    if kind == "u" and not _HEX.issuperset(found[2:]):
        return None
    if kind not in '"\\/bfnrtu':
        return None
    source.pos += length
    return found


def _pass_blanks(source: Source, emit: Callable[[str], None]) -> Reading[None]:
    blanks = yield from source.skip_blanks()
    if blanks:
        emit(blanks)
