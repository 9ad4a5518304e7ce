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
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.chat import ChatChoice, ChatCompletion, ChatCompletionRequest
from xllm.frontend.protocol.completions import Completion, CompletionChoice, CompletionRequest
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.usage import PromptTokensDetails, Usage
from xllm.frontend.services.answers.conversation import parse
from xllm.frontend.services.answers.dispatcher import OutputDispatcher
from xllm.frontend.services.answers.shared import assistant_message, off_loop


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
        found, usage = await self._run(body, [prepared])
        if prepared.new_parser is not None:
            found = [(search, parse(prepared.new_parser(), delta)) for search, delta in found]
        choices: list[ChatChoice] = []
        for _, delta in found:
            message = assistant_message(delta)
            choice = ChatChoice(delta.index, message, None, delta.finish_reason, delta.stop_reason)
            if body.return_token_ids:
                choice.token_ids = delta.token_ids
            choices.append(choice)
        completion = ChatCompletion(
            id=f"chatcmpl-{prepared.request.request_id}",
            created=int(time.time()),
            model=self._served.shown(body.model),
            choices=choices,
            usage=usage,
        )
        if body.return_token_ids:
            completion.prompt_token_ids = prepared.request.prompt_token_ids.tolist()
        return completion

    async def completion(self, body: CompletionRequest) -> Completion:
        """The ``n`` best continuations of each prompt.

        Raises:
            RequestError: the request is refused or failed.
        """
        self._served.adapter(body.model)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_completion(body))
        found, usage = await self._run(body, prepared)
        choices: list[CompletionChoice] = []
        for search, delta in found:
            choice = CompletionChoice(
                delta.index, delta.text, None, delta.finish_reason, delta.stop_reason
            )
            if body.return_token_ids:
                choice.token_ids = delta.token_ids
                ids = search.prepared.request.prompt_token_ids
                choice.prompt_token_ids = ids.tolist()
            choices.append(choice)
        return Completion(
            id=f"cmpl-{prepared[0].request.request_id}",
            created=int(time.time()),
            model=self._served.shown(body.model),
            choices=choices,
            usage=usage,
        )

    async def _run(
        self, body: ChatCompletionRequest | CompletionRequest, prepared: Sequence[PreparedRequest]
    ) -> tuple[list[tuple[PromptSearch, ChoiceDelta]], Usage]:
        """The answers, those of the first prompt first, each with its search; and their cost."""
        limits = self._factory.limits
        try:
            params = beam_params(body, limits.max_beam_width)
            limits.check_sequences(len(prepared), params.beam_width)
            searches = [PromptSearch(self._factory, each, params) for each in prepared]
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        requests = [each.request for each in prepared]
        reasons = ["abort"] * len(requests)
        self._dispatcher.begin(requests)
        try:
            num_cached = await self._step(searches)  # later steps find what this one left there
            while running := [each for each in searches if not each.search.done]:
                await self._step(running)
            reasons = [_reason(each.search.best(params.n)) for each in searches]
        finally:
            self._dispatcher.end(requests, reasons)
        answers = [(each, answer) for each in searches for answer in each.search.best(params.n)]
        news = [(each, each.choice(i, answer)) for i, (each, answer) in enumerate(answers)]
        return news, _usage(prepared, answers, num_cached)

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


def _reason(answers: Sequence[FoundAnswer]) -> str:
    """Why a search ended: for its length if one of its answers did."""
    return "stop" if all(answer.end_token_id is not None for answer in answers) else "length"


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
