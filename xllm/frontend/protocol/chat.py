"""``/v1/chat/completions``: request, answer and stream chunks.

Structs of the streaming path are hidden from the garbage collector (``gc=False``): they are made by
the thousand per second and can be part of no cycle.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from xllm.frontend.protocol.sampling import CommonFields
from xllm.frontend.protocol.usage import Usage


class ContentPart(msgspec.Struct):
    """One part of a message; only ``text`` parts are served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    """A call that the assistant made; ``arguments`` is JSON text."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    """One entry of an assistant message's ``tool_calls``."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn of the conversation."""

    role: str
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatCompletionRequest(CommonFields, kw_only=True):
    """Body of a chat request."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    functions: Any = None
    web_search_options: Any = None
    documents: Any = None
    echo: bool | None = None


class TopLogprob(msgspec.Struct, gc=False):
    """An alternative token; ``bytes`` are its UTF-8 bytes, which may split a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, gc=False):
    """The token that was taken, and the alternatives, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, gc=False):
    """Logprobs of the tokens of one choice or delta; many are JSON text already."""

    content: list[TokenLogprob] | list[msgspec.Raw]


class CalledFunction(msgspec.Struct):
    """A call that the model made; ``arguments`` is JSON text."""

    name: str
    arguments: str


class MadeToolCall(msgspec.Struct):
    """One entry of an answer's ``tool_calls``."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(msgspec.Struct):
    """The answer of one choice. The reasoning goes by both names that clients read."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[MadeToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of ``n`` answers. ``stop_reason`` is the stop string or token id that ended it."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """Answer of a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: None = None
    prompt_logprobs: list[Any] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionPiece(msgspec.Struct, omit_defaults=True, gc=False):
    """What a chunk adds to a call: its name at first, then text of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallPiece(msgspec.Struct, omit_defaults=True, gc=False):
    """What a chunk adds to one of ``tool_calls``; id and type come first and once."""

    index: int
    function: FunctionPiece
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True, gc=False):
    """What a chunk adds to a choice."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ChatChunkChoice(msgspec.Struct, gc=False):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, gc=False):
    """One event of a chat stream. ``usage`` is absent unless asked for."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    prompt_token_ids: list[int] | UnsetType = UNSET
