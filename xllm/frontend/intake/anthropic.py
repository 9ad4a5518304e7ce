"""Anthropic's message requests as chat requests."""

from __future__ import annotations

from typing import Any

import msgspec

from xllm.frontend.protocol.chat import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionCall,
    ToolCall,
)
from xllm.frontend.protocol.messages import (
    CountTokensRequest,
    InputBlock,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from xllm.frontend.protocol.sampling import ResponseFormat

_SAME = ("temperature", "top_p", "top_k", "stream")
_MIN_BUDGET_TOKENS = 1024  # as Anthropic has it
_FORCED = {"auto": "auto", "any": "required", "none": "none"}


# What errors of the chat request are about. Blocks and messages are counted differently.
CHAT_FIELDS = (
    (r"messages\[\d+\]\.", "messages: "),
    (r"response_format(\.json_schema)?", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("stop(?= )", "stop_sequences"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    ("thinking_token_budget", "thinking.budget_tokens"),
)


def chat_of(body: CountTokensRequest) -> ChatCompletionRequest:
    """The chat request that asks for the same.

    Raises:
        ValueError: something is not served; the message starts with the field's name.
    """
    chat = ChatCompletionRequest(
        model=body.model,
        messages=_messages(body),
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])] or None,
        tool_choice=_tool_choice(body.tool_choice),
        chat_template_kwargs=_template_variables(body),
    )
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    config = body.output_config
    if config is not None:
        chat.reasoning_effort = config.effort
    if config is not None and config.format is not None:
        if config.format.type != "json_schema":
            raise ValueError("output_config.format.type must be json_schema")
        schema = {"name": "answer", "schema": config.format.schema}
        chat.response_format = ResponseFormat("json_schema", schema)
    if isinstance(body, MessagesRequest):
        if body.mcp_servers:
            raise ValueError("mcp_servers is not supported: tools of a server are not there")
        if body.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {body.max_tokens}")
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        if body.thinking is not None and body.thinking.type == "enabled":
            chat.thinking_token_budget = body.thinking.budget_tokens
        for name in _SAME:
            setattr(chat, name, getattr(body, name))
    return chat


def _template_variables(body: CountTokensRequest) -> dict[str, Any] | None:
    """What the templates of thinking models ask for, under each of its usual names."""
    thinking = body.thinking
    if thinking is None:
        return None
    budget = thinking.budget_tokens
    if thinking.type == "enabled":
        if budget is None or budget < _MIN_BUDGET_TOKENS:
            raise ValueError(
                f"thinking.budget_tokens must be at least {_MIN_BUDGET_TOKENS}, got {budget}"
            )
        if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
            raise ValueError("thinking.budget_tokens must be less than max_tokens")
    enabled = thinking.type != "disabled"
    return {"enable_thinking": enabled, "thinking": enabled}


def _messages(body: CountTokensRequest) -> list[ChatMessage]:
    messages = []
    if body.system:
        messages.append(ChatMessage(role="system", content=_text(body.system, "system")))
    for i, message in enumerate(body.messages):
        messages += _turn(message, f"messages[{i}].content")
    return messages


def _turn(message: InputMessage, path: str) -> list[ChatMessage]:
    """One turn: results of tools are messages of their own, before what the user adds."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(message.content):
        where = f"{path}[{i}]"
        if block.type == "tool_result" and message.role == "user":
            results.append(_tool_result(block, where))
        elif block.type == "tool_use" and message.role == "assistant":
            calls.append(_tool_call(block, where))
        elif block.type == "thinking" and message.role == "assistant":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_text([block], path, i))
    if not (texts or thoughts or calls):
        return results
    turn = ChatMessage(
        role=message.role,
        content="\n".join(texts) if texts else None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )
    return [*results, turn]


def _tool_result(block: InputBlock, path: str) -> ChatMessage:
    if block.tool_use_id is None:
        raise ValueError(f"{path}.tool_use_id is required")
    content = _text(block.content or "", f"{path}.content")
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=content)


def _tool_call(block: InputBlock, path: str) -> ToolCall:
    if block.name is None or block.id is None:
        raise ValueError(f"{path} needs id and name")
    arguments = msgspec.json.encode(block.input or {}).decode()
    return ToolCall(FunctionCall(block.name, arguments), block.id)


def _text(content: str | list[InputBlock], path: str, start: int = 0) -> str:
    if isinstance(content, str):
        return content
    for i, block in enumerate(content, start):
        if block.type != "text":
            raise ValueError(
                f"{path}[{i}]: blocks of type {block.type[:64]!r} are not supported here"
                + ("; this model reads text only" if block.type in ("image", "document") else "")
            )
        if block.text is None:
            raise ValueError(f"{path}[{i}].text is required")
    return "\n".join(block.text or "" for block in content)


def _tool(tool: MessagesTool, path: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise ValueError(f"{path}.type must be 'custom': tools of a server are not there")
    if tool.input_schema is None:
        raise ValueError(f"{path}.input_schema is required")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _tool_choice(choice: MessagesToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise ValueError("tool_choice.name is required for type 'tool'")
        return {"type": "function", "function": {"name": choice.name}}
    return _FORCED[choice.type]
