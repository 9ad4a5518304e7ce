"""Beam search over next-token logprobs, without an engine: what to ask next, what was found.

Scores, the stopping rules and their names are those of Hugging Face's ``generate``: an answer of
``t`` tokens (its end token counts) with logprob ``p`` has score ``p / t ** length_penalty``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

EarlyStopping = bool | Literal["never"]


class Beam(NamedTuple):
    """An unfinished answer."""

    token_ids: tuple[int, ...]
    logprob: float  # of all its tokens


class FoundAnswer(NamedTuple):
    """A finished answer. The token that ended it is not among ``token_ids``."""

    score: float
    token_ids: tuple[int, ...]
    logprob: float
    end_token_id: int | None  # None: it reached the length limit


class BeamSearch:
    """One prompt's search.

    Until ``done``: ask for the ``num_alternatives`` likeliest successors of each of ``beams``, and
    give them to ``advance``.

    Args:
        width: beams kept, and answers found at most.
        max_tokens: length limit of an answer, at least 1.
        end_token_ids: tokens that end an answer.
        length_penalty: above 0 favours long answers, below short ones.
        early_stopping: True stops at ``width`` answers; False when the best beam, as it is, scores
            below all of them; "never" when no continuation of it can score above one of them.
    """

    def __init__(
        self,
        width: int,
        max_tokens: int,
        end_token_ids: Collection[int],
        *,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        assert width >= 1 and max_tokens >= 1
        self.beams = [Beam((), 0.0)]
        self.done = False
        self._width = width
        self._max_tokens = max_tokens
        self._ends = frozenset(end_token_ids)
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._length = 0
        self._found: list[FoundAnswer] = []

    @property
    def num_alternatives(self) -> int:
        """Successors per beam that are enough: with every end token among them, ``width`` go on."""
        return self._width + len(self._ends)

    def advance(self, successors: Sequence[Mapping[int, float]]) -> None:
        """Go on by one token.

        Args:
            successors: per beam, the logprobs of its likeliest next tokens.
        """
        assert not self.done and len(successors) == len(self.beams)
        self._length += 1
        last = self._length == self._max_tokens
        candidates = [
            (beam.logprob + logprob, place, token_id)
            for place, (beam, found) in enumerate(zip(self.beams, successors, strict=True))
            for token_id, logprob in found.items()
        ]
        candidates.sort(key=lambda candidate: (-candidate[0], candidate[1]))
        running: list[Beam] = []
        for rank, (logprob, place, token_id) in enumerate(candidates):
            tokens = self.beams[place].token_ids
            ends = token_id in self._ends
            # Those beyond the first ``width`` only stand in for beams that have ended.
            if rank < self._width and (ends or last):
                self._finish(tokens, token_id, logprob)
            if not ends and len(running) < self._width:
                running.append(Beam((*tokens, token_id), logprob))
        self.beams = running
        self.done = last or not running or self._is_settled()

    def best(self, count: int) -> list[FoundAnswer]:
        """The answers with the highest scores, best first."""
        return self._found[:count]

    def _finish(self, tokens: tuple[int, ...], token_id: int, logprob: float) -> None:
        score = self._score(logprob, self._length)
        if token_id in self._ends:
            answer = FoundAnswer(score, tokens, logprob, token_id)
        else:
            answer = FoundAnswer(score, (*tokens, token_id), logprob, None)
        found = [*self._found, answer]
        self._found = heapq.nlargest(self._width, found, key=lambda each: each.score)

    def _is_settled(self) -> bool:
        """Whether the answers found are final."""
        if len(self._found) < self._width:
            return False
        if self._early_stopping is True:
            return True
        length = self._length
        if self._early_stopping == "never" and self._length_penalty > 0:
            length = self._max_tokens
        return self._score(self.beams[0].logprob, length) <= self._found[-1].score

    def _score(self, logprob: float, length: int) -> float:
        return logprob / math.pow(length, self._length_penalty)
