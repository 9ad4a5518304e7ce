"""One constrained row on its way through its thoughts and its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xllm.core.grammar import Grammar
from xllm.core.request.structured import StructuredOutput
from xllm.execution.sampling.grammar.minimum import Minimum
from xllm.execution.sampling.grammar.thoughts import Thoughts


class GrammarRow:
    """What a row may sample, as far as its tokens are known.

    Attributes:
        matcher: takes the tokens once the grammar has begun.
        lane: of the matcher; those of one lane cannot work side by side.
        free: whether there is no grammar: anything may follow the thoughts, or the end at any time.
        begun: whether the grammar has; before, anything but the end is free (a thinking model's
            reasoning), as long as its budget lasts.
        ended: whether the end was sampled.
        failure: why the row cannot go on.
        first_step: number of the step before its first, where steps are counted.
        minimum: what must not end it yet; None where nothing needs to be held back.
    """

    __slots__ = (
        "_thoughts",
        "begun",
        "ended",
        "eos_token_ids",
        "failure",
        "first_step",
        "free",
        "grammar",
        "lane",
        "matcher",
        "minimum",
    )

    def __init__(self, output: StructuredOutput, grammar: Grammar, first_step: int = 0) -> None:
        self.grammar = grammar
        self.first_step = first_step
        taken = grammar.new_matcher()
        self.matcher: Any = None if taken is None else taken.matcher
        self.lane = -1 if taken is None else taken.lane
        self.eos_token_ids = frozenset(grammar.vocabulary.eos_token_ids)
        self.free = output.kind == "free"
        self.begun = not (output.after_token_ids or output.after_text)
        self.ended = False
        self.failure: str | None = None
        self.minimum: Minimum | None = None
        self._thoughts = None if self.begun else Thoughts(output, grammar.vocabulary.token_bytes)

    @property
    def forced(self) -> int | None:
        """The only token that may come next, where the thoughts have used up their budget."""
        return None if self.begun or self._thoughts is None else self._thoughts.forced

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were sampled before the row was preempted."""
        for place, token in enumerate(token_ids):
            if self.begun:
                if not self.free and not self.matcher.consume_tokens(list(token_ids[place:])):
                    self.failure = "structured_outputs does not lead to its own output"
                return
            self.skip(token)

    def skip(self, token: int) -> None:
        """Take a token before the grammar has begun."""
        assert self._thoughts is not None
        self.begun = self._thoughts.feed(token)
