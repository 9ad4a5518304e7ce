"""One constrained row on its way through its grammar."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.core.grammar import Grammar
from xllm.core.request.structured import StructuredOutput


class GrammarRow:
    """What a row may sample, as far as its tokens are known.

    Attributes:
        matcher: takes the tokens once the grammar has begun.
        begun: whether it has; before, anything but the end is free (a thinking model's reasoning).
        ended: whether the end was sampled.
        failure: why the row cannot go on.
    """

    __slots__ = ("_trigger", "begun", "ended", "eos_token_ids", "failure", "matcher")

    def __init__(self, output: StructuredOutput, grammar: Grammar) -> None:
        self.matcher = grammar.new_matcher()
        self.eos_token_ids = frozenset(grammar.vocabulary.eos_token_ids)
        self.begun = not (output.after_token_ids or output.after_text)
        self.ended = False
        self.failure: str | None = None
        self._trigger = None if self.begun else _Trigger(output, grammar.vocabulary.token_bytes)

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were sampled before the row was preempted."""
        for place, token in enumerate(token_ids):
            if self.begun:
                if not self.matcher.consume_tokens(list(token_ids[place:])):
                    self.failure = "its grammar does not lead to its own output"
                return
            self.skip(token)

    def skip(self, token: int) -> None:
        """Take a token before the grammar has begun."""
        assert self._trigger is not None
        self.begun = self._trigger.feed(token)


class _Trigger:
    """Watches for the tokens or the text after which a grammar begins."""

    def __init__(self, output: StructuredOutput, token_bytes: Sequence[bytes]) -> None:
        self._token_ids = list(output.after_token_ids)
        self._text = output.after_text.encode()
        self._token_bytes = token_bytes
        self._last_ids: list[int] = []
        self._last_bytes = b""

    def feed(self, token: int) -> bool:
        """Whether this token completes the sequence."""
        if self._token_ids:
            self._last_ids = [*self._last_ids, token][-len(self._token_ids) :]
            if self._last_ids == self._token_ids:
                return True
        if not self._text:
            return False
        seen = self._last_bytes + self._token_bytes[token]
        self._last_bytes = seen[max(0, len(seen) - len(self._text) + 1) :]
        return self._text in seen
