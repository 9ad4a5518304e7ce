"""FunctionGemma's notation: ``call:find{q:<escape>text<escape>,n:3,tags:[...]}``."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import msgspec

from xllm.frontend.parsers.bodies import skip_to
from xllm.frontend.parsers.format import Draft
from xllm.frontend.parsers.source import Reading, Source
from xllm.frontend.parsers.values import to_json

_MAX_DEPTH = 32
_NAME = re.compile(r"[\w.-]*")
_ATOM = re.compile(r"[^,\[\]{}<]*")


class _Malformed(Exception):
    """The text is not of this notation."""


@dataclasses.dataclass(frozen=True)
class BracedCall:
    """One call; texts stand between two equal marks, keys are bare."""

    prefix: str
    quote: str
    close: str

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read one call, and the closing tag if it is there."""
        source = draft.source
        yield from source.skip_blanks()
        if not (yield from source.take(self.prefix)):
            return False
        name = yield from source.span(_NAME)
        if not name or (yield from source.peek()) != "{":
            return False
        try:
            values = yield from self._value(source, 0)
        except _Malformed:
            return False
        draft.call(name, to_json(values))
        yield from skip_to(draft, self.close)
        return True

    def _value(self, source: Source, depth: int) -> Reading[Any]:
        if depth > _MAX_DEPTH:
            raise _Malformed
        mark = yield from source.take(self.quote, "{", "[")
        if mark == self.quote:
            found = yield from source.until(self.quote)
            if found is None:
                raise _Malformed
            return found[0]
        if mark is None:
            text = (yield from source.span(_ATOM)).strip()
            try:
                return msgspec.json.decode(text)
            except msgspec.DecodeError:
                return text
        return (yield from self._members(source, mark, depth))

    def _members(self, source: Source, mark: str, depth: int) -> Reading[Any]:
        close = "}" if mark == "{" else "]"
        items: list[Any] = []
        keyed: dict[str, Any] = {}
        yield from source.skip_blanks()
        while not (yield from source.take(close)):
            if mark == "{":
                yield from source.skip_blanks()
                key = yield from source.span(_NAME)
                if not key or not (yield from source.take(":")):
                    raise _Malformed
                keyed[key] = yield from self._value(source, depth + 1)
            else:
                yield from source.skip_blanks()
                items.append((yield from self._value(source, depth + 1)))
            yield from source.skip_blanks()
            end = yield from source.take(",", close)
            if end is None:
                raise _Malformed
            if end == close:
                break
        return keyed if mark == "{" else items
