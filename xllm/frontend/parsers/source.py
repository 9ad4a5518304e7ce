"""Text that arrives in pieces, as parsers want to read it: from start to end, straight on.

A parser is a generator that yields whenever it must wait for more text. It sees the text only
through these readers, and each of them decides by the text alone, never by where a piece ended.
That is why streamed results equal those of the whole text for every way of cutting it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
BLANKS = " \t\r\n"
# Characters of one text that may be read again after attempts that came to nothing: about a tenth
# of a second. An answer of nothing but opening tags would else take time quadratic in its length.
_MAX_REREAD_CHARS = 1 << 22
_BLANK_RUN = re.compile(r"[ \t\r\n]*")


class Source:
    """The unread text, and how to wait for more of it."""

    __slots__ = ("_held", "_num_reread", "ended", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.ended = False
        self._held = False
        self._num_reread = 0

    @property
    def patient(self) -> bool:
        """Whether attempts that may fail are still allowed."""
        return self._num_reread <= _MAX_REREAD_CHARS

    def feed(self, text: str) -> None:
        """Append text. What was read is forgotten unless it is held."""
        if self.pos and not self._held:
            self.text = self.text[self.pos :] + text
            self.pos = 0
        else:
            self.text += text

    def hold(self) -> int:
        """Keep the text from here on, so that ``rewind`` can return."""
        self._held = True
        return self.pos

    def rewind(self, mark: int) -> None:
        """Go back to where ``hold`` was called."""
        self._num_reread += self.pos - mark
        self.pos = mark
        self._held = False

    def release(self) -> None:
        """What is read from now on will not be read again."""
        self._held = False

    def more(self) -> Reading[bool]:
        """Wait until there is unread text; False at the end."""
        while self.pos >= len(self.text):
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """The next character, or nothing at the end."""
        return self.text[self.pos] if (yield from self.more()) else ""

    def skip_blanks(self) -> Reading[str]:
        """Read white space."""
        return (yield from self.span(_BLANK_RUN))

    def span(self, run: re.Pattern[str]) -> Reading[str]:
        """Read as many characters as ``run``, a class with ``*``, covers."""
        start = self.pos
        held, self._held = self._held, True
        while True:
            match = run.match(self.text, self.pos)
            assert match is not None
            self.pos = match.end()
            if self.pos < len(self.text) or self.ended:
                self._held = held
                return self.text[start : self.pos]
            yield

    def take(self, *literals: str) -> Reading[str | None]:
        """Read the longest of these texts that comes next, or nothing."""
        while True:
            ahead = self.text[self.pos : self.pos + max(map(len, literals))]
            if self.ended or not any(len(x) > len(ahead) and x.startswith(ahead) for x in literals):
                break
            yield
        found = max((x for x in literals if ahead.startswith(x)), key=len, default=None)
        if found is not None:
            self.pos += len(found)
        return found

    def scan(self, marks: Sequence[str], emit: Callable[[str], None]) -> Reading[str | None]:
        """Pass text on up to the first of ``marks``, and read that; None at the end."""
        pattern = _any_of(tuple(marks))
        while True:
            text = self.text
            unsure = len(text) if self.ended else _possible_start(text, self.pos, marks)
            match = pattern.search(text, self.pos)
            if match is not None and match.start() < unsure:
                if match.start() > self.pos:
                    emit(text[self.pos : match.start()])
                self.pos = match.end()
                return match[0]
            if unsure > self.pos:
                emit(text[self.pos : unsure])
                self.pos = unsure
            if self.ended:
                return None
            yield

    def until(self, *marks: str) -> Reading[tuple[str, str] | None]:
        """The text before the first of ``marks``, and that one; None if there is none."""
        parts: list[str] = []
        mark = yield from self.scan(marks, parts.append)
        return None if mark is None else ("".join(parts), mark)


@lru_cache(maxsize=256)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(m) for m in sorted(marks, key=len, reverse=True)))


def _possible_start(text: str, pos: int, marks: Sequence[str]) -> int:
    """Where the longest unread end of ``text`` starts that may yet become a mark."""
    first = len(text)
    for mark in marks:
        at = text.find(mark[0], max(pos, len(text) - len(mark) + 1), first)
        while at >= 0 and not mark.startswith(text[at:]):
            at = text.find(mark[0], at + 1, first)
        if at >= 0:
            first = at
    return first
