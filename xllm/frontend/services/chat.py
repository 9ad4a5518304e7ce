"""``/v1/chat/completions``."""

from __future__ import annotations

import time

from msgspec import UNSET, UnsetType

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatLogprobs,
)
from xllm.frontend.protocol.usage import Usage
from xllm.frontend.services.chunks import SETTLE_SECONDS, ChunkStream
from xllm.frontend.services.dispatcher import AnswerStream, OutputDispatcher, PromptDelta
from xllm.frontend.services.logprobs import chat_logprobs
from xllm.frontend.services.shared import (
    check_model,
    check_stream_fields,
    off_loop,
    prompt_logprobs_of,
    usage_of,
)
from xllm.frontend.text.tokenizer import Tokenizer


class ChatService:
    """Answers conversations.

    Args:
        factory: makes engine requests.
        dispatcher: sends them and brings the answers.
        model: the served model's name in the API.
    """

    def __init__(self, factory: RequestFactory, dispatcher: OutputDispatcher, model: str) -> None:
        self._factory = factory
        self._dispatcher = dispatcher
        self._model = model

    async def handle(
        self, body: ChatCompletionRequest
    ) -> ChatCompletion | ChunkStream[ChatCompletionChunk]:
        """Answer whole, or as an async iterator of chunk lists if ``stream`` is set.

        Cancelling the call, or closing the iterator, aborts the request in the engine.

        Raises:
            RequestError: the request is refused or failed.
        """
        check_model(body.model, self._model)
        check_stream_fields(body)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_chat(body))
        stream = self._dispatcher.submit(
            [prepared], whole=not body.stream, keep_entries=bool(body.return_token_ids)
        )
        answer = _Answer(body, prepared, stream, self._model, self._factory.tokenizer)
        try:
            if not body.stream:
                return answer.whole(await stream.read())
            await stream.settle(SETTLE_SECONDS)
        except BaseException:
            stream.close()
            raise
        return ChunkStream(stream, answer)


class _Answer:
    """Shapes one answer, in one piece or in chunks."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        prepared: PreparedRequest,
        stream: AnswerStream,
        model: str,
        tokenizer: Tokenizer,
    ) -> None:
        options = body.stream_options
        self._id = f"chatcmpl-{prepared.request.request_id}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._answers = stream.answers
        self._prompt_token_ids = prepared.request.prompt_token_ids
        self._logprobs = bool(body.logprobs)
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._usage = bool(options and options.include_usage)
        self._running_usage = bool(self._usage and options and options.continuous_usage_stats)
        self._begun: set[int] = set()

    def whole(self, news: list[PromptDelta]) -> ChatCompletion:
        """The answer in one piece, from its only news."""
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(delta) for _, delta in news],
            usage=usage_of(self._answers),
        )
        if self._prompt_logprobs:
            completion.prompt_logprobs = prompt_logprobs_of(self._answers[0], self._tokenizer)
        if self._token_ids:
            completion.prompt_token_ids = self._prompt_token_ids.tolist()
        return completion

    def chunks(self, news: list[PromptDelta]) -> list[ChatCompletionChunk]:
        """Chunks for news that arrived together."""
        chunks = []
        for _, delta in news:
            if delta.index not in self._begun:
                self._begun.add(delta.index)
                chunks.append(self._opening(delta.index))
            if delta.text or delta.entries or delta.finish_reason:
                chunks.append(self._chunk([self._chunk_choice(delta)]))
        return chunks

    def closing(self) -> list[ChatCompletionChunk]:
        """The usage chunk, if asked for."""
        return [self._chunk([], usage_of(self._answers))] if self._usage else []

    def _opening(self, index: int) -> ChatCompletionChunk:
        delta = ChatDelta(role="assistant", content="")
        chunk = self._chunk([ChatChunkChoice(index, delta)])
        if self._token_ids:
            chunk.prompt_token_ids = self._prompt_token_ids.tolist()
        return chunk

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None = UNSET
    ) -> ChatCompletionChunk:
        if usage is UNSET and self._usage:
            usage = usage_of(self._answers) if self._running_usage else None
        return ChatCompletionChunk(self._id, self._created, self._model, choices, usage)

    def _chunk_choice(self, delta: ChoiceDelta) -> ChatChunkChoice:
        choice = ChatChunkChoice(
            delta.index,
            ChatDelta(content=delta.text or None),
            self._logprobs_of(delta) if delta.entries else None,
            delta.finish_reason,
        )
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        if self._token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def _choice(self, delta: ChoiceDelta) -> ChatChoice:
        choice = ChatChoice(
            delta.index,
            AssistantMessage(delta.text),
            self._logprobs_of(delta),
            delta.finish_reason,
            delta.stop_reason,
        )
        if self._token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def _logprobs_of(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        return chat_logprobs(delta.entries, self._tokenizer) if self._logprobs else None
