"""Where parsers put what they found: content, reasoning and calls, white space tidied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from xllm.frontend.parsers.delta import Parsed, TextDelta, ToolCallDelta
from xllm.frontend.parsers.source import BLANKS


class Sink:
    """Collects one message.

    White space between the parts of a message belongs to none of them: reasoning is stripped,
    blanks around calls are dropped, and content after reasoning begins with its first word.
    Everything else is passed on to the letter.

    Args:
        new_id: makes a call's id from its index.
        max_calls: calls beyond this many are dropped.
        keep_reasoning: whether thoughts are passed on.
        shown: text of characters that stand for special tokens.
    """

    def __init__(
        self,
        new_id: Callable[[int], str],
        *,
        max_calls: int | None = None,
        keep_reasoning: bool = True,
        shown: Mapping[int, str] | None = None,
    ) -> None:
        self._new_id = new_id
        self._max_calls = max_calls
        self._keep_reasoning = keep_reasoning
        self._shown = dict(shown or {})
        self._parsed = Parsed()
        self._texts: list[str] = []  # of ``_kind``, not joined yet
        self._kind: Literal["reasoning", "content", "call"] = "content"
        self._blanks = ""  # content that is dropped unless a word follows
        self._in_words = False
        self._reasoned = False
        self._thought_blanks = ""
        self._open = False
        self._num_calls = 0
        self._torn = False

    @property
    def called(self) -> bool:
        """Whether there was a call and every one is complete."""
        return self._num_calls > 0 and not self._torn and not self._open

    @property
    def complete(self) -> bool:
        """Whether no call is open."""
        return not self._open

    @property
    def silent(self) -> bool:
        """Whether nothing but white space was said yet."""
        return not self._in_words and not self._num_calls

    def take(self) -> Parsed:
        """Everything since the last call."""
        self._flush()
        parsed, self._parsed = self._parsed, Parsed()
        return parsed

    def content(self, text: str) -> None:
        """Text of the answer."""
        if not self._in_words:
            text = self._blanks + text
            words = text.lstrip(BLANKS)
            if not words:
                self._blanks = text
                return
            self._blanks = ""
            self._in_words = True
            if self._reasoned and not self._num_calls:
                text = words
        self._write("content", text)

    def reasoning(self, text: str) -> None:
        """Text of the thoughts before the answer."""
        text = self._thought_blanks + text
        if not self._reasoned:
            text = text.lstrip(BLANKS)
        words = text.rstrip(BLANKS)
        self._thought_blanks = text[len(words) :]
        if words:
            self._reasoned = True
            if self._keep_reasoning:
                self._write("reasoning", words)

    def end_reasoning(self) -> None:
        """The answer follows."""
        self._reasoned = True
        self._thought_blanks = "\n"  # between two stretches of thoughts

    def open_call(self, name: str, call_id: str | None = None) -> None:
        """A call begins."""
        self._flush()
        self._torn = self._torn or self._open
        self._blanks = ""
        self._in_words = False
        self._open = True
        index = self._num_calls
        self._num_calls += 1
        if not self._muted:
            call_id = call_id or self._new_id(index)
            self._parsed.add(ToolCallDelta(index, call_id, name))

    def arguments(self, text: str) -> None:
        """The next piece of the open call's JSON text."""
        if not self._muted:
            self._write("call", text)

    def close_call(self) -> None:
        """The open call is complete."""
        self._open = False

    def call(self, name: str, arguments: str, call_id: str | None = None) -> None:
        """A whole call."""
        self.open_call(name, call_id)
        self.arguments(arguments)
        self.close_call()

    def finish(self) -> None:
        """The message has ended. An answer of nothing but white space is still an answer."""
        if self.silent and not self._reasoned:
            self._write("content", self._blanks)

    def _write(self, kind: Literal["reasoning", "content", "call"], text: str) -> None:
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._texts.append(self._show(text))

    def _flush(self) -> None:
        if text := "".join(self._texts):
            if self._kind == "call":
                self._parsed.add(ToolCallDelta(self._num_calls - 1, arguments=text))
            else:
                self._parsed.add(TextDelta(self._kind, text))
        self._texts = []

    @property
    def _muted(self) -> bool:
        return self._max_calls is not None and self._num_calls > self._max_calls

    def _show(self, text: str) -> str:
        return text.translate(self._shown) if self._shown else text
