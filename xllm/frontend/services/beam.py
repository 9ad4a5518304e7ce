"""Beam search as a service on top of the engine: every step of it is a group of small requests.

The prefix cache makes that cheap: of each beam only the tail of its last block is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from xllm.frontend.intake.beam import PromptSearch, beam_params
from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output.beam import FoundAnswer
from xllm.frontend.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
)
from xllm.frontend.protocol.completions import Completion, CompletionChoice, CompletionRequest
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.usage import PromptTokensDetails, Usage
from xllm.frontend.services.dispatcher import OutputDispatcher
from xllm.frontend.services.shared import off_loop


class BeamService:
    """Answers ``use_beam_search`` requests.

    Args:
        factory: makes engine requests.
        dispatcher: sends them and brings the answers.
        served: the names that ``model`` may have.
    """

    def __init__(
        self, factory: RequestFactory, dispatcher: OutputDispatcher, served: ServedModels
    ) -> None:
        self._factory = factory
        self._dispatcher = dispatcher
        self._served = served

    async def chat(self, body: ChatCompletionRequest) -> ChatCompletion:
        """The ``n`` best answers to a conversation.

        Raises:
            RequestError: the request is refused or failed.
        """
        self._served.adapter(body.model)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_chat(body))
        search = await self._run(body, [prepared])
        choices: list[ChatChoice] = []
        for each, answer in search.answers:
            message = AssistantMessage(each.text(answer))
            choice = ChatChoice(len(choices), message, None, *_ending(answer, each.prepared))
            if body.return_token_ids:
                choice.token_ids = list(answer.token_ids)
            choices.append(choice)
        return ChatCompletion(
            id=f"chatcmpl-{prepared.request.request_id}",
            created=int(time.time()),
            model=self._served.shown(body.model),
            choices=choices,
            usage=search.usage,
        )

    async def completion(self, body: CompletionRequest) -> Completion:
        """The ``n`` best continuations of each prompt.

        Raises:
            RequestError: the request is refused or failed.
        """
        self._served.adapter(body.model)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_completion(body))
        search = await self._run(body, prepared)
        choices: list[CompletionChoice] = []
        for each, answer in search.answers:
            text = each.text(answer)
            choice = CompletionChoice(len(choices), text, None, *_ending(answer, each.prepared))
            if body.return_token_ids:
                choice.token_ids = list(answer.token_ids)
            choices.append(choice)
        return Completion(
            id=f"cmpl-{prepared[0].request.request_id}",
            created=int(time.time()),
            model=self._served.shown(body.model),
            choices=choices,
            usage=search.usage,
        )

    async def _run(
        self, body: ChatCompletionRequest | CompletionRequest, prepared: Sequence[PreparedRequest]
    ) -> _Result:
        limits = self._factory.limits
        try:
            params = beam_params(body, limits.max_beam_width)
            limits.check_sequences(len(prepared), params.beam_width)
            searches = [PromptSearch(self._factory, each, params) for each in prepared]
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        num_cached = await self._step(searches)  # later steps find what this search left there
        while running := [each for each in searches if not each.search.done]:
            await self._step(running)
        answers = [(each, answer) for each in searches for answer in each.search.best(params.n)]
        return _Result(answers, _usage(prepared, answers, num_cached))

    async def _step(self, running: Sequence[PromptSearch]) -> int:
        """Advance every search by one token; returns how many prompt tokens the cache had."""
        groups = [each.requests() for each in running]
        requests = [request for group in groups for request in group]
        stream = self._dispatcher.submit(requests, whole=True, keep_entries=True)
        try:
            news = await stream.read()
        finally:
            stream.close()
        found = {index: dict(delta.entries[0].alternatives) for index, delta in news}
        start = 0
        for each, group in zip(running, groups, strict=True):
            each.search.advance([found[start + i] for i in range(len(group))])
            start += len(group)
        return sum(answer.num_cached_tokens for answer in stream.answers)


class _Result:
    """Answers with the searches that found them, and what they cost."""

    def __init__(self, answers: list[tuple[PromptSearch, FoundAnswer]], usage: Usage) -> None:
        self.answers = answers
        self.usage = usage


def _ending(answer: FoundAnswer, prepared: PreparedRequest) -> tuple[str, int | None]:
    """Finish and stop reason; only a stop token that the user named is a stop reason."""
    if answer.end_token_id is None:
        return "length", None
    named = answer.end_token_id in prepared.request.params.stop_token_ids
    return "stop", answer.end_token_id if named else None


def _usage(
    prepared: Sequence[PreparedRequest],
    answers: Sequence[tuple[PromptSearch, FoundAnswer]],
    num_cached: int,
) -> Usage:
    """Tokens of prompts and returned answers; those of abandoned beams are not counted."""
    prompt = sum(len(each.request.prompt_token_ids) for each in prepared)
    generated = sum(
        len(answer.token_ids) + (answer.end_token_id is not None) for _, answer in answers
    )
    return Usage(prompt, generated, prompt + generated, PromptTokensDetails(num_cached))
