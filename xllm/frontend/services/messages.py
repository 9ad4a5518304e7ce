"""Anthropic's ``/v1/messages``."""

from __future__ import annotations

from typing import Any

import msgspec

from xllm.frontend.intake.anthropic import CHAT_FIELDS, chat_of
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.parsers.json_text import whole_members
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.errors import RequestError, in_the_words_of
from xllm.frontend.protocol.messages import (
    BlockDelta,
    BlockStart,
    BlockStop,
    CountTokensRequest,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEvent,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessagesUsage,
    OutputBlock,
    Ping,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
)
from xllm.frontend.services.answers.chunks import ChunkStream, open_stream, read_whole
from xllm.frontend.services.answers.conversation import Conversation, Conversations
from xllm.frontend.services.answers.parts import AnswerParts, Change, Part
from xllm.frontend.services.render import RenderService

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageService:
    """Answers conversations in Anthropic's shape.

    Args:
        conversations: finds the answers.
        render: counts the tokens of a conversation.
    """

    def __init__(self, conversations: Conversations, render: RenderService) -> None:
        self._conversations = conversations
        self._render = render

    async def handle(self, body: MessagesRequest) -> Message | ChunkStream[MessageEvent]:
        """Answer whole, or as an async iterator of event lists if ``stream`` is set.

        Raises:
            RequestError: the request is refused or failed.
        """
        chat = _chat_of(body)
        if not self._conversations.bounds_thoughts:
            chat.thinking_token_budget = None  # clients ask any model to think
        with in_the_words_of(CHAT_FIELDS):
            conversation = await self._conversations.open(chat)
        answer = _Answer(conversation, self._conversations.served.shown(body.model))
        if body.stream:
            return await open_stream(conversation, answer)
        return await read_whole(conversation, answer)

    async def count_tokens(self, body: CountTokensRequest) -> TokenCount:
        """How many tokens the conversation has, with template and tools.

        Raises:
            RequestError: the conversation would be refused.
        """
        chat = _chat_of(body)
        with in_the_words_of(CHAT_FIELDS):
            return TokenCount((await self._render.chat(chat)).num_tokens)


class _Answer:
    """Shapes one answer, in one piece or in events."""

    def __init__(self, conversation: Conversation, model: str) -> None:
        self._conversation = conversation
        self._model = model
        self._parts = AnswerParts()
        self._ending = StopDelta(None, None)
        self._begun = False

    def num_entries(self, news: list[ChoiceDelta]) -> int:
        """None: the API has no logprobs."""
        return 0

    def whole(self, news: list[ChoiceDelta]) -> Message:
        """The message, from its only news."""
        for delta in news:
            self._feed(delta)
        message = self._message([_block(part) for part in self._parts.parts])
        message.stop_reason = self._ending.stop_reason
        message.stop_sequence = self._ending.stop_sequence
        return message

    def chunks(self, news: list[ChoiceDelta]) -> list[MessageEvent]:
        """Events for news that arrived together."""
        events: list[MessageEvent] = []
        if not self._begun:
            self._begun = True
            events += [MessageStart(self._message([])), Ping()]
        for delta in news:
            events += [_event(change) for change in self._feed(delta)]
        return events

    def closing(self) -> list[MessageEvent]:
        """Why it ended, and what it cost."""
        return [MessageDelta(self._ending, self._usage()), MessageStop()]

    def _feed(self, delta: ChoiceDelta) -> list[Change]:
        if delta.finish_reason is not None:
            reason: str | None = _STOP_REASONS.get(delta.finish_reason, delta.finish_reason)
            stop = delta.stop_reason if isinstance(delta.stop_reason, str) else None
            if stop is not None and reason == "end_turn":
                reason = "stop_sequence"
            self._ending = StopDelta(reason, stop)
        return self._parts.feed(delta)

    def _message(self, content: list[OutputBlock]) -> Message:
        return Message(f"msg_{self._conversation.request_id}", self._model, content, self._usage())

    def _usage(self) -> MessagesUsage:
        usage = self._conversation.usage
        cached = usage.prompt_tokens_details.cached_tokens
        return MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _chat_of(body: CountTokensRequest) -> ChatCompletionRequest:
    try:
        return chat_of(body)
    except ValueError as error:
        raise RequestError.from_value_error(error) from None


def _block(part: Part) -> OutputBlock:
    if part.kind == "reasoning":
        return ThinkingBlock(part.text)
    if part.kind == "text":
        return TextBlock(part.text)
    return ToolUseBlock(part.call_id, part.name, _input(part.text))


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object; of those that the length limit cut off, what is complete."""
    for text in (arguments or "{}", whole_members(arguments)):
        try:
            made: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            continue
        return made
    return {}


def _event(change: Change) -> MessageEvent:
    part = change.part
    if change.what == "close":
        return BlockStop(part.index)
    if change.what == "open":
        block: OutputBlock = TextBlock("")
        if part.kind == "reasoning":
            block = ThinkingBlock("")
        elif part.kind == "call":
            block = ToolUseBlock(part.call_id, part.name, {})
        return BlockStart(part.index, block)
    delta: TextDelta | ThinkingDelta | InputJsonDelta = TextDelta(change.text)
    if part.kind == "reasoning":
        delta = ThinkingDelta(change.text)
    elif part.kind == "call":
        delta = InputJsonDelta(change.text)
    return BlockDelta(part.index, delta)
