"""``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UnsetType

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output.answer import AnswerState
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from xllm.frontend.protocol.usage import Usage
from xllm.frontend.services.answers.chunks import ChunkStream, open_stream, read_whole
from xllm.frontend.services.answers.dispatcher import AnswerStream, OutputDispatcher, PromptDelta
from xllm.frontend.services.answers.logprobs import completion_logprobs, prompt_offsets
from xllm.frontend.services.answers.shared import (
    ChunkUsage,
    check_stream_fields,
    off_loop,
    shown_prompt_logprobs,
    usage_of,
)
from xllm.frontend.services.beam import BeamService
from xllm.frontend.text.tokenizer import Tokenizer


class CompletionService:
    """Continues prompts.

    Args:
        factory: makes engine requests.
        dispatcher: sends them and brings the answers.
        served: the names that ``model`` may have.
        beams: answers by beam search where that is asked for.
    """

    def __init__(
        self,
        factory: RequestFactory,
        dispatcher: OutputDispatcher,
        served: ServedModels,
        beams: BeamService,
    ) -> None:
        self._factory = factory
        self._dispatcher = dispatcher
        self._served = served
        self._beams = beams

    async def handle(self, body: CompletionRequest) -> Completion | ChunkStream[Completion]:
        """Answer whole, or as an async iterator of chunk lists if ``stream`` is set.

        Choice ``j`` of prompt ``i`` has index ``i * n + j``. Cancelling the call, or closing the
        iterator, aborts the requests in the engine.

        Raises:
            RequestError: the request is refused or failed.
        """
        self._served.adapter(body.model)
        check_stream_fields(body)
        if body.use_beam_search:
            return await self._beams.completion(body)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_completion(body))
        first = prepared[0]  # all prompts share one grammar
        await self._factory.grammars.check(first.request, first.grammar_field)
        stream = self._dispatcher.submit(
            prepared, whole=not body.stream, keep_entries=bool(body.return_token_ids)
        )
        answer = _Answer(
            body, prepared, stream, self._served.shown(body.model), self._factory.tokenizer
        )
        if body.stream:
            return await open_stream(stream, answer)
        return await read_whole(stream, answer)


class _Answer:
    """Shapes one answer, in one piece or in chunks."""

    def __init__(
        self,
        body: CompletionRequest,
        prepared: Sequence[PreparedRequest],
        stream: AnswerStream,
        model: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._id = f"cmpl-{prepared[0].request.request_id}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._prepared = prepared
        self._answers = stream.answers
        self._n = body.n if body.n is not None else 1
        self._echo = bool(body.echo)
        self._logprobs = body.logprobs is not None
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._usage = ChunkUsage(body.stream_options, lambda: usage_of(stream.answers))
        self._echoed: set[int] = set()
        self._echo_text: dict[int, str] = {}

    def num_entries(self, news: list[PromptDelta]) -> int:
        """Logprob entries of the news, and of the prompts that are shown with them."""
        if not (self._logprobs or self._prompt_logprobs):
            return 0
        total = sum(len(delta.entries) for _, delta in news)
        if self._echo or self._prompt_logprobs:
            total += sum(
                self._answers[prompt].num_prompt_tokens
                for prompt, delta in news
                if prompt * self._n + delta.index not in self._echoed
            )
        return total

    def whole(self, news: list[PromptDelta]) -> Completion:
        """The answer in one piece, from its only news."""
        by_prompt: dict[int, list[ChoiceDelta]] = {}
        for prompt, delta in news:
            by_prompt.setdefault(prompt, []).append(delta)
        choices = []
        for prompt in sorted(by_prompt):
            best = self._best(self._answers[prompt], by_prompt[prompt])
            choices += [self._choice(prompt, place, delta) for place, delta in enumerate(best)]
        return self._completion(choices, usage_of(self._answers))

    def chunks(self, news: list[PromptDelta]) -> list[Completion]:
        """Chunks for news that arrived together."""
        return [
            self._completion([self._choice(prompt, delta.index, delta)], self._usage.of_chunk())
            for prompt, delta in news
            if delta.text or delta.entries or delta.finish_reason
        ]

    def closing(self) -> list[Completion]:
        """The usage chunk, if asked for."""
        return [self._completion([], usage_of(self._answers))] if self._usage.asked else []

    def _best(self, answer: AnswerState, deltas: list[ChoiceDelta]) -> list[ChoiceDelta]:
        """The ``n`` answers with the highest mean logprob, where ``best_of`` made more."""
        if len(deltas) == self._n:
            return deltas

        def mean_logprob(delta: ChoiceDelta) -> float:
            choice = answer.choices[delta.index]
            return choice.cumulative_logprob / max(1, choice.num_tokens)

        return sorted(deltas, key=mean_logprob, reverse=True)[: self._n]

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(self._id, self._created, self._model, choices, usage)

    def _choice(self, prompt: int, place: int, delta: ChoiceDelta) -> CompletionChoice:
        index = prompt * self._n + place
        opens = index not in self._echoed
        self._echoed.add(index)
        echoed = self._echoed_text(prompt) if self._echo else ""
        choice = CompletionChoice(
            index,
            echoed + delta.text if opens else delta.text,
            self._logprobs_of(prompt, delta, len(echoed), opens) if self._logprobs else None,
            delta.finish_reason,
            delta.stop_reason,
        )
        if self._prompt_logprobs:
            entries = self._answers[prompt].prompt_logprobs
            choice.prompt_logprobs = shown_prompt_logprobs(entries, self._tokenizer)
        if self._token_ids:
            choice.token_ids = delta.token_ids
            if opens:
                ids = self._prepared[prompt].request.prompt_token_ids
                choice.prompt_token_ids = ids.tolist()
        return choice

    def _logprobs_of(
        self, prompt: int, delta: ChoiceDelta, num_echoed: int, opens: bool
    ) -> CompletionLogprobs:
        """Entries of the delta; the prompt's come before them where the text echoes it."""
        own = completion_logprobs(delta.entries, delta.offsets, self._tokenizer, num_echoed)
        if not (self._echo and opens):
            return own
        entries = self._answers[prompt].prompt_logprobs
        offsets = prompt_offsets(entries, self._tokenizer)
        asked = completion_logprobs(entries, offsets, self._tokenizer)
        return CompletionLogprobs(
            asked.tokens + own.tokens,
            asked.token_logprobs + own.token_logprobs,
            asked.top_logprobs + own.top_logprobs,
            asked.text_offset + own.text_offset,
        )

    def _echoed_text(self, prompt: int) -> str:
        text = self._echo_text.get(prompt)
        if text is None:
            given = self._prepared[prompt]
            text = given.prompt_text
            if text is None:
                text = self._tokenizer.decode(
                    given.request.prompt_token_ids.tolist(),
                    skip_special_tokens=given.request.params.skip_special_tokens,
                )
            self._echo_text[prompt] = text
        return text
