"""Chat messages of the API to the plain values that templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from xllm.frontend.protocol.chat import (
    ChatCompletionRequest,
    ChatMessage,
    ContentPart,
    ToolCall,
)
from xllm.frontend.protocol.tokenize import TokenizeRequest
from xllm.frontend.text.chat_template import Message, TemplateNeeds

_TEXT_PARTS = ("text", "input_text", "output_text")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Templates know the older name of the role.
_ROLES = {"developer": "system", "function": "tool"}


def template_messages(messages: Sequence[ChatMessage], needs: TemplateNeeds) -> list[Message]:
    """Messages in the shapes that a template expects.

    Content is one string (text parts joined by line breaks) or, for templates that only know
    parts, a list of them. Missing content is an empty string. Tool-call arguments are a mapping, or
    JSON text for templates that want it.

    Raises:
        ValueError: no messages, a part that is not text, or arguments that are not a JSON object.
    """
    if not messages:
        raise ValueError("messages must not be empty")
    return [_message(m, f"messages[{i}]", needs) for i, m in enumerate(messages)]


def template_variables(body: ChatCompletionRequest | TokenizeRequest) -> dict[str, Any]:
    """Further names for the template: the request's own, and what its effort means.

    Raises:
        ValueError: an unknown effort.
    """
    given = body.chat_template_kwargs or {}
    effort = body.reasoning_effort if isinstance(body, ChatCompletionRequest) else None
    if effort is None:
        return given
    if effort not in _EFFORTS:
        raise ValueError(f"reasoning_effort must be one of {', '.join(_EFFORTS)}")
    thinks = effort != "none"
    # Templates that only know thinking on and off call it by one of these names.
    return {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": effort, **given}


def prefill_of(body: ChatCompletionRequest) -> str:
    """The beginning of the answer, where the last message is to be continued."""
    if not body.continue_final_message or not body.messages:
        return ""
    return "\n".join(_texts(body.messages[-1].content, "messages[-1]"))


def thinking_is_off(body: ChatCompletionRequest) -> bool:
    """Whether the request asks the model not to think, whatever the template makes of that."""
    variables = template_variables(body)
    return variables.get("enable_thinking") is False or variables.get("thinking") is False


def num_chars(messages: Sequence[ChatMessage]) -> int:
    """Characters of all contents, thoughts and arguments of calls, as they came."""
    total = 0
    for message in messages:
        total += len(message.reasoning_content or message.reasoning or "")
        for call in message.tool_calls or ():
            if isinstance(call.function.arguments, str):
                total += len(call.function.arguments)
        content = message.content
        if isinstance(content, list):
            total += sum(len(p if isinstance(p, str) else p.text or "") for p in content)
        elif content is not None:
            total += len(content)
    return total


def _message(message: ChatMessage, path: str, needs: TemplateNeeds) -> Message:
    result: Message = {"role": _ROLES.get(message.role, message.role)}
    texts = _texts(message.content, path)
    if message.content is None and message.role not in ("assistant", "tool"):
        raise ValueError(f"{path}.content is required for role {message.role!r}")
    if needs.content_parts:
        result["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        result["content"] = "\n".join(texts)
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:  # templates know it by either name
        result["reasoning_content"] = result["reasoning"] = reasoning
    if message.tool_calls:
        result["tool_calls"] = [
            _tool_call(call, f"{path}.tool_calls[{i}]", needs)
            for i, call in enumerate(message.tool_calls)
        ]
    return result


def _texts(content: str | list[ContentPart | str] | None, path: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]


def _part(part: ContentPart | str, path: str) -> str:
    if isinstance(part, str):
        return part
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        raise ValueError(f"{path}: parts of type {part.type!r} are not supported, only text is")
    if part.text is None:
        raise ValueError(f"{path}.text is required")
    return part.text


def _tool_call(call: ToolCall, path: str, needs: TemplateNeeds) -> dict[str, Any]:
    arguments = call.function.arguments
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"{path}.function.arguments must be a JSON object: {error}") from None
    given: Any = arguments
    if needs.string_arguments:
        given = msgspec.json.encode(arguments).decode()
    function = {"name": call.function.name, "arguments": given}
    return {"id": call.id, "type": "function", "function": function}
