"""One request's answer: its choices, its prompt's logprobs, its counts, its error."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.core.messages.server import PromptLogprobs
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.utils.arrays import Float32Array
from xllm.frontend.output.choice import ChoiceDelta, ChoiceState
from xllm.frontend.output.logprobs import TokenEntry, prompt_entries
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.text.tokenizer import Tokenizer

GRAMMAR_FIELD = "structured_outputs"  # what the engine calls a request's grammar


class AnswerState:
    """State of one open request, fed by ``OutputProcessor`` and read by services.

    Args:
        request: what was sent to the engine.
        tokenizer: the model's.
        eos_token_ids: ids that end a text without being a stop reason.
        keep_entries: deltas carry one entry per token (logprobs or token ids were asked for).
        token_table: bytes of every token, if not the tokenizer's own.
        grammar_field: what the client calls its grammar.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        keep_entries: bool = False,
        token_table: Sequence[bytes] | None = None,
        grammar_field: str = GRAMMAR_FIELD,
    ) -> None:
        params = request.params
        self.request = request
        self.grammar_field = grammar_field
        self.num_cached_tokens = 0
        self.queue_seconds = 0.0
        self.error: RequestError | None = None
        self.finished = False  # nothing will follow
        self.pooled: Float32Array | None = None  # (D,) the raw vector, from a model that pools
        at_start = tokenizer.strips_blank and tokenizer.special_ids.issuperset(
            request.prompt_token_ids.tolist()
        )
        self.choices = [
            ChoiceState(
                index,
                tokenizer,
                params,
                eos_token_ids=eos_token_ids,
                at_start=at_start,
                keep_entries=keep_entries or params.logprobs is not None,
                token_table=token_table,
            )
            for index in range(params.n)
        ]
        self._prompt_parts: list[tuple[int, list[TokenEntry]]] = []

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all choices so far."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def prompt_logprobs(self) -> list[TokenEntry]:
        """One entry per prompt token; the first has no logprob. Complete before any text."""
        first = TokenEntry(int(self.request.prompt_token_ids[0]), None, 0, [])
        parts = sorted(self._prompt_parts, key=lambda part: part[0])
        return [first, *(entry for _, entries in parts for entry in entries)]

    def add_prompt_logprobs(self, part: PromptLogprobs) -> None:
        """Take a stretch of the prompt's logprobs; stretches may come again after a preemption."""
        count = self.request.params.prompt_logprobs or 0
        if all(start != part.start for start, _ in self._prompt_parts):
            self._prompt_parts.append((part.start, prompt_entries(part, count)))

    def push(
        self,
        index: int,
        token_ids: Sequence[int],
        entries: Sequence[TokenEntry] | None,
        finish: FinishReason,
        stop_token: int,
    ) -> bool:
        """Take a step's tokens of one open choice; see ``ChoiceState.push``."""
        choice = self.choices[index]
        stopped = choice.push(token_ids, entries, finish, stop_token)
        if choice.finish:
            self.finished = all(choice.finish for choice in self.choices)
        return stopped

    def fail(self, error: RequestError, finish: FinishReason = FinishReason.ERROR) -> None:
        """End every open choice with an error; the first error stays."""
        if not self.finished:
            self.error = error
            self.finished = True
            for choice in self.choices:
                choice.fail(finish)

    def take(self) -> Sequence[ChoiceDelta]:
        """What each choice gained since the last call; choices without news are left out.

        Raises:
            RequestError: the request failed.
        """
        if self.error is not None:
            raise self.error
        return [choice.take() for choice in self.choices if choice.unread]
