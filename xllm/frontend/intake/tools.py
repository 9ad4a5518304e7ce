"""Checks of ``tools`` and ``tool_choice``: what is served and what is not."""

from __future__ import annotations

from typing import Any

from xllm.frontend.protocol.chat import ChatCompletionRequest


def visible_tools(body: ChatCompletionRequest) -> list[dict[str, Any]] | None:
    """The tools that the template shows to the model: all, or none for ``tool_choice: none``.

    The model may answer with a call in its own format; that text is the answer's content.

    Raises:
        ValueError: a malformed tool, an unknown choice, or a choice that forces a call.
    """
    tools = body.tools or []
    names = [_function_name(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    choice = body.tool_choice
    if choice is None or choice == "auto":
        return tools or None
    if choice == "none":
        return None
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise ValueError("tool_choice must name a function: {type, function: {name}}")
        if name not in names:
            raise ValueError(f"tool_choice names {name!r}, which is not among tools")
    elif choice != "required":
        raise ValueError(
            f"tool_choice must be none, auto, required or a function, got {choice[:64]!r}"
        )
    elif not tools:
        raise ValueError("tool_choice 'required' needs tools")
    raise ValueError("tool_choice that forces a call is not supported yet; use auto or none")


def _function_name(tool: dict[str, Any], path: str) -> str:
    if tool.get("type") != "function":
        raise ValueError(f"{path}.type must be 'function'")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path}.function.name is required")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    if parameters is not None and not isinstance(parameters, dict):
        raise ValueError(f"{path}.function.parameters must be a JSON schema object")
    return name
