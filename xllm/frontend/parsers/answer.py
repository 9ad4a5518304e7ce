"""A model's answers: which formats they have, and a parser for each request."""

from __future__ import annotations

import dataclasses
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from xllm.frontend.parsers.format import Body, ReasoningFormat, ToolFormat, respelled, texts_of
from xllm.frontend.parsers.harmony import Harmony
from xllm.frontend.parsers.message import TextParser
from xllm.frontend.parsers.sink import Sink
from xllm.frontend.parsers.values import Schema
from xllm.frontend.text.tokenizer import Tokenizer

# Special tokens that are tags appear in the text as characters that no text contains (plane 16 is
# private), so that the same letters written by a model as ordinary tokens remain prose.
_FIRST_STAND_IN = 0x10F000
FormatT = TypeVar("FormatT")
_LETTERS = string.ascii_letters + string.digits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What one request expects of its answers.

    Args:
        tools: parameters of the functions that may be called, by name; none: calls are not read.
        max_calls: further calls are dropped.
        thinking: whether the prompt has left the thoughts open; None when it says nothing.
        implied: whether the answer may begin with thoughts that no tag opens, as some formats do.
        keep_reasoning: whether the client wants the thoughts.
        forced: reads an answer that a grammar binds to be a call.
    """

    tools: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    max_calls: int | None = None
    thinking: bool | None = None
    implied: bool = True
    keep_reasoning: bool = True
    forced: Body | None = None


class AnswerFormats:
    """The formats of one model.

    Args:
        tokenizer: tells which tags are special tokens.
        tools: how calls are written; None: nobody knows, and they stay content.
        reasoning: how thoughts are written, likewise.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: ToolFormat | Harmony | None = None,
        reasoning: ReasoningFormat | Harmony | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._given = reasoning
        if isinstance(tools, Harmony) or isinstance(reasoning, Harmony):
            tools = reasoning = Harmony()  # one cannot be read without the other
        stand_ins = _stand_ins(tokenizer, "\n".join([*texts_of(tools), *texts_of(reasoning)]))
        self._shown = {ord(char): text for text, char in stand_ins.items()}
        self._tools = _spelled(tools, stand_ins)
        self._reasoning = _spelled(reasoning, stand_ins)
        self._tables = [
            _with_stand_ins(table, tokenizer, stand_ins) if stand_ins else None
            for table in (tokenizer.token_bytes, tokenizer.text_bytes)
        ]

    def token_table(self, skip_special_tokens: bool) -> Sequence[bytes] | None:
        """Bytes of every token where tags must be visible; None: the tokenizer's own will do."""
        return self._tables[skip_special_tokens]

    def thinking(self, prompt: str, prefill: str = "") -> bool | None:
        """Whether a prompt leaves the thoughts open (True) or closed (False); None: neither.

        Args:
            prompt: the rendered conversation.
            prefill: the beginning of the answer, if the prompt ends with one.
        """
        if not isinstance(self._given, ReasoningFormat):
            return None
        if prefill:
            return any(prefill.rfind(a) > prefill.rfind(b) for a, b in self._given.pairs)
        tail = prompt.rstrip()
        for opening, closing in self._given.pairs:
            if tail.endswith(closing):
                return False
            if tail.endswith(opening):
                return True
        return None

    @property
    def thought_tags(self) -> tuple[str, str] | None:
        """The tags around the thoughts; None where there are none, or several things end them."""
        form = self._given
        if not isinstance(form, ReasoningFormat) or len(form.pairs) > 1 or form.until_calls:
            return None
        return form.pairs[0]

    @property
    def thoughts_implied(self) -> bool:
        """Whether an answer begins with thoughts even where nobody wrote the opening tag."""
        return isinstance(self._given, ReasoningFormat) and self._given.implied

    def end_of_thoughts(self, thinking: bool | None) -> str:
        """The tag after which the answer proper begins; empty when it begins at once."""
        form = self._given
        if not isinstance(form, ReasoningFormat) or thinking is False:
            return ""
        return form.pairs[0][1] if thinking or form.implied or form.eager else ""

    def parser(self, expected: Expected) -> Callable[[], TextParser] | None:
        """Makes the parser of one choice; None when all of its text is content."""
        tools = self._tools if expected.tools else None
        reasoning = self._reasoning
        if isinstance(reasoning, ReasoningFormat) and not expected.implied:
            reasoning = dataclasses.replace(reasoning, implied=False)
        thinks = reasoning is not None and expected.thinking is not False
        if tools is None and not thinks and expected.forced is None:
            return None

        def make() -> TextParser:
            short = isinstance(tools, ToolFormat) and tools.short_ids
            sink = Sink(
                _short_id if short else _call_id,
                max_calls=expected.max_calls,
                keep_reasoning=expected.keep_reasoning,
                shown=self._shown,
            )
            return TextParser(
                sink,
                expected.tools,
                tool_format=tools,
                reasoning_format=reasoning,
                thinking=expected.thinking,
                forced=expected.forced,
            )

        return make


def _stand_ins(tokenizer: Tokenizer, texts: str) -> dict[str, str]:
    """A character for each special token that occurs in the formats' texts."""
    found = [
        name
        for token_id in sorted(tokenizer.special_ids)
        if (name := tokenizer.token_bytes[token_id].decode("utf-8", "replace")) and name in texts
    ]
    return {name: chr(_FIRST_STAND_IN + i) for i, name in enumerate(dict.fromkeys(found))}


def _spelled(form: FormatT, stand_ins: Mapping[str, str]) -> FormatT:
    if not stand_ins:
        return form
    pattern = re.compile("|".join(map(re.escape, sorted(stand_ins, key=len, reverse=True))))
    return respelled(form, lambda text: pattern.sub(lambda match: stand_ins[match[0]], text))


def _with_stand_ins(
    table: Sequence[bytes], tokenizer: Tokenizer, stand_ins: Mapping[str, str]
) -> list[bytes]:
    changed = list(table)
    for token_id in tokenizer.special_ids:
        char = stand_ins.get(tokenizer.token_bytes[token_id].decode("utf-8", "replace"))
        if char is not None:
            changed[token_id] = char.encode()
    return changed


def _call_id(index: int) -> str:
    return "call_" + secrets.token_hex(12)


def _short_id(index: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
