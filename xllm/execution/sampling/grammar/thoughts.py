"""A row before its grammar begins: what opens its thoughts, what ends them, how long they are."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.core.request.structured import StructuredOutput


class Thoughts:
    """Watches for the tokens or the text after which a grammar begins, and counts until then.

    Thoughts that reach their budget are ended by its ``end_token_ids``. An answer that does not
    begin with the tag it should open has none: one without a grammar is left alone, one with a
    grammar is counted from there.
    """

    def __init__(self, output: StructuredOutput, token_bytes: Sequence[bytes]) -> None:
        self._token_ids = list(output.after_token_ids)
        self._text = output.after_text.encode()
        self._token_bytes = token_bytes
        self._last_ids: list[int] = []
        self._last_bytes = b""
        budget = output.budget
        self._free = output.kind == "free"
        self._left = 0 if budget is None else budget.num_tokens
        self._forced = () if budget is None else budget.end_token_ids
        self._num_forced = 0
        self._open_id = None if budget is None else budget.open_token_id
        self._open_text = b"" if budget is None else budget.open_text.encode()
        self._opening = self._open_id is not None or bool(self._open_text)
        self._head = b""  # of the answer, while its opening tag is incomplete

    @property
    def forced(self) -> int | None:
        """The only token that may come next; None where any may."""
        if self._opening or self._left or not self._forced:
            return None
        return self._forced[self._num_forced]

    def feed(self, token: int) -> bool:
        """Take a token; whether the thoughts have ended with it."""
        if self.forced is not None:
            self._num_forced += 1
            return self._num_forced == len(self._forced)
        if self._opening:
            opened = self._opens(token)
            self._opening = opened is None
            if opened is not False:
                return False
            if self._free:
                return True
        if self._left:
            self._left -= 1
        return self._ends(token)

    def _opens(self, token: int) -> bool | None:
        """Whether the answer begins with the opening tag; None while that is open."""
        if self._open_id is not None and token == self._open_id:
            return True
        self._head = (self._head + self._token_bytes[token]).lstrip()
        if self._open_text and self._head.startswith(self._open_text):
            return True
        return None if self._open_text.startswith(self._head) else False

    def _ends(self, token: int) -> bool:
        """Whether this token completes what ends the thoughts."""
        if self._token_ids:
            self._last_ids = [*self._last_ids, token][-len(self._token_ids) :]
            if self._last_ids == self._token_ids:
                return True
        if not self._text:
            return False
        seen = self._last_bytes + self._token_bytes[token]
        self._last_bytes = seen[max(0, len(seen) - len(self._text) + 1) :]
        return self._text in seen
