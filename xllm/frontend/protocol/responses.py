"""OpenAI's ``/v1/responses``: request, stored response and its items.

Source of names and shapes: https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from xllm.frontend.protocol.chat import ContentPart


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the input. Which fields matter depends on ``type``; a message needs none."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart | str] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None


class Reasoning(msgspec.Struct):
    """How hard to think. Thoughts are returned as they are, so a summary changes nothing."""

    effort: str | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """Asked form of the answer: ``text``, ``json_object`` or ``json_schema``."""

    type: str
    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct):
    """Settings of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Body of a request for a response. Null means the default.

    ``user``, ``safety_identifier``, ``prompt_cache_key``, ``service_tier``, ``max_tool_calls`` and
    ``stream_options`` change nothing. The fields after them are ours, as in a chat request.
    """

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    truncation: str | None = None
    background: bool | None = None
    stream: bool | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    conversation: Any = None
    prompt: Any = None
    messages: Any = None
    max_tokens: Any = None
    response_format: Any = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    stream_options: Any = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    deadline_ms: float | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OutputText(msgspec.Struct, tag="output_text"):
    """What the model says."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    """What the model thought."""

    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(msgspec.Struct, tag="message", kw_only=True):
    """The model speaks."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning", kw_only=True):
    """The model thinks."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, tag="function_call", kw_only=True):
    """The model calls a function; ``arguments`` is JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    """How the input's tokens were obtained."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """What the output's tokens are."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens read and written."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponseFault(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Response(msgspec.Struct, kw_only=True):
    """A response, at whatever stage: what was asked, and what has come of it."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    background: bool
    store: bool
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: TextConfig
    reasoning: Reasoning
    metadata: dict[str, str]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    previous_response_id: str | None = None
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    user: str | None = None
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"


class DeletedResponse(msgspec.Struct):
    """Answer of a deletion."""

    id: str
    deleted: Literal[True] = True
    object: Literal["response"] = "response"


class ItemList(msgspec.Struct):
    """A page of a response's input items."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"
