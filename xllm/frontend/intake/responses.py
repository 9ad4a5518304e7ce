"""Requests for responses as chat requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xllm.frontend.protocol.chat import (
    ChatCompletionRequest,
    ChatMessage,
    ContentPart,
    FunctionCall,
    ToolCall,
)
from xllm.frontend.protocol.responses import (
    FunctionCallItem,
    InputItem,
    OutputItem,
    ReasoningItem,
    ResponsesRequest,
    TextFormat,
)
from xllm.frontend.protocol.sampling import ResponseFormat

# Taken over under the same name.
_SAME = (
    *("model", "parallel_tool_calls", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "priority"),
    *("cache_salt", "timeout", "deadline_ms", "truncate_prompt_tokens", "chat_template_kwargs"),
)
_ABSENT = {
    "conversation": "conversations are not kept; use previous_response_id",
    "prompt": "prompt templates are not kept",
    "top_logprobs": "logprobs are served by /v1/chat/completions",
    "messages": "use input",
    "max_tokens": "use max_output_tokens",
    "response_format": "use text.format",
}
# What errors of the chat request are about. Items and messages are counted differently.
CHAT_FIELDS = (
    (r"messages\[\d+\]\.", "input: "),
    ("messages", "input"),
    (r"response_format(\.json_schema)?", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    (r"max_(completion_)?tokens", "max_output_tokens"),
    (r"(tools\[\d+\])\.function", r"\1"),
)
# Thoughts come in the open, so there is nothing encrypted to include.
_INCLUDABLE = ("reasoning.encrypted_content",)
_MAX_METADATA = 16
_MAX_METADATA_CHARS = 512


def chat_of(body: ResponsesRequest, before: Sequence[ChatMessage]) -> ChatCompletionRequest:
    """The chat request that asks for the same, after the messages ``before`` it.

    Raises:
        ValueError: something is not served; the message starts with the field's name.
    """
    _check(body)
    messages = [*before, *messages_of(body.input)]
    if body.instructions is not None:
        messages.insert(0, ChatMessage(role="system", content=body.instructions))
    chat = ChatCompletionRequest(
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])] or None,
        tool_choice=_tool_choice(body.tool_choice),
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        stream=body.stream,
    )
    if body.text is not None and body.text.format is not None:
        chat.response_format = _format(body.text.format)
    for name in _SAME:
        setattr(chat, name, getattr(body, name))
    return chat


def messages_of(given: str | Sequence[InputItem]) -> list[ChatMessage]:
    """Chat messages of input items. What the assistant did in one turn is one message.

    Raises:
        ValueError: an item of a kind that is not served, or without what its kind needs.
    """
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    if not given:
        raise ValueError("input must not be empty")
    messages: list[ChatMessage] = []
    for i, item in enumerate(given):
        path = f"input[{i}]"
        if item.type in (None, "message"):
            _add_message(messages, item, path)
        elif item.type == "function_call":
            call = ToolCall(_called(item, path), item.call_id)
            turn = _assistant_turn(messages)
            if turn.tool_calls is None:
                turn.tool_calls = []
            turn.tool_calls.append(call)
        elif item.type == "function_call_output":
            if item.call_id is None or item.output is None:
                raise ValueError(f"{path} needs call_id and output")
            output: Any = item.output
            messages.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=output))
        elif item.type == "reasoning":
            parts = item.content if isinstance(item.content, list) else item.summary
            text = "\n".join(p if isinstance(p, str) else p.text or "" for p in parts or [])
            if text:
                messages.append(ChatMessage(role="assistant", reasoning_content=text))
        else:
            raise ValueError(f"{path}.type {item.type[:64]!r} is not supported")
    return messages


def messages_of_output(items: Sequence[OutputItem]) -> list[ChatMessage]:
    """What a response adds to its conversation."""
    return messages_of([_input_item(item) for item in items]) if items else []


def _input_item(item: OutputItem) -> InputItem:
    if isinstance(item, FunctionCallItem):
        return InputItem(
            type="function_call", call_id=item.call_id, name=item.name, arguments=item.arguments
        )
    parts: list[ContentPart | str] = [part.text for part in item.content]
    if isinstance(item, ReasoningItem):
        return InputItem(type="reasoning", content=parts)
    return InputItem(type="message", role="assistant", content=parts)


def _add_message(messages: list[ChatMessage], item: InputItem, path: str) -> None:
    if item.role is None or item.content is None:
        raise ValueError(f"{path} needs role and content")
    if item.role != "assistant":
        messages.append(ChatMessage(role=item.role, content=item.content))
        return
    turn = _assistant_turn(messages)
    if turn.content is not None:
        turn = ChatMessage(role="assistant")
        messages.append(turn)
    turn.content = item.content


def _assistant_turn(messages: list[ChatMessage]) -> ChatMessage:
    """The assistant's message that is last, or a new one."""
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant"))
    return messages[-1]


def _called(item: InputItem, path: str) -> FunctionCall:
    if item.call_id is None or item.name is None:
        raise ValueError(f"{path} needs call_id and name")
    return FunctionCall(item.name, item.arguments)


def _check(body: ResponsesRequest) -> None:
    for name, reason in _ABSENT.items():
        if getattr(body, name) is not None:
            raise ValueError(f"{name} is not supported: {reason}")
    if body.truncation not in (None, "disabled"):
        raise ValueError("truncation must be 'disabled': nothing of the input is dropped")
    for name in body.include or ():
        if name not in _INCLUDABLE:
            raise ValueError(f"include {name[:64]!r} is not supported")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise ValueError(f"max_output_tokens must be at least 1, got {body.max_output_tokens}")
    metadata = body.metadata or {}
    if len(metadata) > _MAX_METADATA:
        raise ValueError(f"metadata must have at most {_MAX_METADATA} entries")
    if any(max(len(k), len(v)) > _MAX_METADATA_CHARS for k, v in metadata.items()):
        raise ValueError(f"metadata must have texts of at most {_MAX_METADATA_CHARS} characters")
    if body.background and body.stream:
        raise ValueError("background cannot be combined with stream")
    if body.background and body.store is False:
        raise ValueError("background needs store: the response is fetched by its id")


def _tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ValueError(f"{path}.type must be 'function': tools of a server are not there")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [_named(tool) for tool in tools] if isinstance(tools, list) else None
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": named},
        }
    return _named(choice)


def _named(choice: Any) -> dict[str, Any]:
    """A function's name in the shape of chat requests."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise ValueError("tool_choice must be none, auto, required, a function or allowed_tools")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _format(form: TextFormat) -> ResponseFormat:
    if form.type == "json_schema":
        schema = {"name": form.name or "answer", "schema": form.schema, "strict": form.strict}
        return ResponseFormat("json_schema", schema)
    if form.type not in ("text", "json_object"):
        raise ValueError("text.format.type must be text, json_object or json_schema")
    return ResponseFormat(form.type)
