"""``/v1/chat/completions``."""

from __future__ import annotations

from msgspec import UnsetType

from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    ChatLogprobs,
    FunctionPiece,
    ToolCallPiece,
)
from xllm.frontend.protocol.usage import Usage
from xllm.frontend.services.answers.chunks import ChunkStream, open_stream, read_whole
from xllm.frontend.services.answers.conversation import Conversation, Conversations
from xllm.frontend.services.answers.logprobs import chat_logprobs
from xllm.frontend.services.answers.shared import (
    ChunkUsage,
    assistant_message,
    shown_prompt_logprobs,
)
from xllm.frontend.services.beam import BeamService
from xllm.frontend.text.tokenizer import Tokenizer


class ChatService:
    """Answers conversations.

    Args:
        conversations: finds the answers; this service gives them the API's shape.
        beams: answers by beam search where that is asked for.
    """

    def __init__(self, conversations: Conversations, beams: BeamService) -> None:
        self._conversations = conversations
        self._beams = beams

    async def handle(
        self, body: ChatCompletionRequest
    ) -> ChatCompletion | ChunkStream[ChatCompletionChunk]:
        """Answer whole, or as an async iterator of chunk lists if ``stream`` is set.

        Cancelling the call, or closing the iterator, aborts the request in the engine.

        Raises:
            RequestError: the request is refused or failed.
        """
        if body.use_beam_search:
            return await self._beams.chat(body)
        source = self._conversations
        conversation = await source.open(body)
        answer = _Answer(body, conversation, source.served.shown(body.model), source.tokenizer)
        if body.stream:
            return await open_stream(conversation, answer)
        return await read_whole(conversation, answer)


class _Answer:
    """Shapes one answer, in one piece or in chunks."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        conversation: Conversation,
        model: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._id = f"chatcmpl-{conversation.request_id}"
        self._created = conversation.created
        self._model = model
        self._tokenizer = tokenizer
        self._conversation = conversation
        self._logprobs = bool(body.logprobs)
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._token_ids = bool(body.return_token_ids)
        self._usage = ChunkUsage(body.stream_options, lambda: conversation.usage)
        self._begun: set[int] = set()

    def num_entries(self, news: list[ChoiceDelta]) -> int:
        """Logprob entries of the news, and of the prompt if that is shown with them."""
        if not (self._logprobs or self._prompt_logprobs):
            return 0
        return sum(len(delta.entries) for delta in news) + (
            len(self._conversation.prompt_logprobs) if self._prompt_logprobs else 0
        )

    def whole(self, news: list[ChoiceDelta]) -> ChatCompletion:
        """The answer in one piece, from its only news."""
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(delta) for delta in news],
            usage=self._conversation.usage,
        )
        if self._prompt_logprobs:
            entries = self._conversation.prompt_logprobs
            completion.prompt_logprobs = shown_prompt_logprobs(entries, self._tokenizer)
        if self._token_ids:
            completion.prompt_token_ids = self._conversation.prompt_token_ids
        return completion

    def chunks(self, news: list[ChoiceDelta]) -> list[ChatCompletionChunk]:
        """Chunks for news that arrived together."""
        chunks = []
        for delta in news:
            if delta.index not in self._begun:
                self._begun.add(delta.index)
                chunks.append(self._opening(delta.index))
            if (
                delta.text
                or delta.entries
                or delta.finish_reason
                or delta.reasoning
                or delta.tool_calls
            ):
                chunks.append(self._chunk([self._chunk_choice(delta)], self._usage.of_chunk()))
        return chunks

    def closing(self) -> list[ChatCompletionChunk]:
        """The usage chunk, if asked for."""
        return [self._chunk([], self._conversation.usage)] if self._usage.asked else []

    def _opening(self, index: int) -> ChatCompletionChunk:
        delta = ChatDelta(role="assistant", content="")
        chunk = self._chunk([ChatChunkChoice(index, delta)], self._usage.of_chunk())
        if self._token_ids:
            chunk.prompt_token_ids = self._conversation.prompt_token_ids
        return chunk

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(self._id, self._created, self._model, choices, usage)

    def _chunk_choice(self, delta: ChoiceDelta) -> ChatChunkChoice:
        added = ChatDelta(content=delta.text or None)
        if delta.reasoning:
            added.reasoning_content = added.reasoning = delta.reasoning
        if delta.tool_calls:
            added.tool_calls = [
                ToolCallPiece(
                    call.index,
                    FunctionPiece(call.name, call.arguments),
                    call.id,
                    None if call.id is None else "function",
                )
                for call in delta.tool_calls
            ]
        choice = ChatChunkChoice(
            delta.index,
            added,
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
            assistant_message(delta),
            self._logprobs_of(delta),
            delta.finish_reason,
            delta.stop_reason,
        )
        if self._token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def _logprobs_of(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        return chat_logprobs(delta.entries, self._tokenizer) if self._logprobs else None
