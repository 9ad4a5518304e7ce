"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``: request, answer, stream events.

Source of names and shapes: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class InputBlock(msgspec.Struct):
    """One block of a message. Which fields matter depends on ``type``; images are not served."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class MessagesTool(msgspec.Struct):
    """A function that the model may call; tools that run on a server are not served."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class MessagesToolChoice(msgspec.Struct):
    """Whether the model may, must or must not call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model thinks before it answers, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct):
    """Asked form of the answer: ``json_schema``."""

    type: str
    schema: Any = None


class OutputConfig(msgspec.Struct):
    """Form of the answer, and how hard to think about it."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """Body of a request to count tokens: a message request without its limits."""

    model: str | None = None
    messages: list[InputMessage]
    system: str | list[InputBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    truncate_prompt_tokens: None = None  # not served


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of a message request. ``metadata`` and ``service_tier`` change nothing."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: Any = None
    service_tier: str | None = None
    mcp_servers: Any = None


class TokenCount(msgspec.Struct):
    """Answer of a request to count tokens."""

    input_tokens: int


class TextBlock(msgspec.Struct, tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """What the model thought. Nothing is signed: the thoughts come as they are."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A call that the model made."""

    id: str
    name: str
    input: dict[str, Any]


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct):
    """Token counts; ``input_tokens`` are those that no cache had."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct):
    """Answer of a message request."""

    id: str
    model: str
    content: list[OutputBlock]
    usage: MessagesUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(msgspec.Struct, tag="message_start"):
    """First event: the message without its content."""

    message: Message


class Ping(msgspec.Struct, tag="ping"):
    """Nothing new."""


class BlockStart(msgspec.Struct, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: OutputBlock


class TextDelta(msgspec.Struct, tag="text_delta", gc=False):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta", gc=False):
    """More of a thought."""

    thinking: str


class InputJsonDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    """More of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag="content_block_delta", gc=False):
    """A block has grown."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(msgspec.Struct):
    """Why the message ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    """The message has ended, and what it cost."""

    delta: StopDelta
    usage: MessagesUsage


class MessageStop(msgspec.Struct, tag="message_stop"):
    """Last event."""


MessageEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)
