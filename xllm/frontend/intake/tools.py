"""What a request says about tools: which there are, which must be called, by what grammar."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from xllm.core.request.structured import StructuredOutputsParams
from xllm.frontend.intake.structured import Form
from xllm.frontend.parsers.bodies import JsonCalls
from xllm.frontend.parsers.format import Body
from xllm.frontend.parsers.message import ForcedArguments
from xllm.frontend.parsers.values import Schema
from xllm.frontend.protocol.chat import ChatCompletionRequest

MAX_TOOLS = 128
# A model that is made to call something, and may call again, must come to an end. Small ones repeat
# themselves as often as they may, so there is one call unless a request asks for several.
MAX_FORCED_CALLS = 8
_NAME = re.compile(r"[\w.-]{1,128}")
_LOCAL_REF = re.compile(r"#/(?:\$defs|definitions)/")


@dataclasses.dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request.

    ``shown`` goes to the template; ``schemas`` are the parameters of what may be called. A call is
    ``forced`` to the function of that name, or to any with an empty name. ``parallel`` is None
    where the request leaves it open.
    """

    shown: list[dict[str, Any]] | None = None
    schemas: dict[str, Schema] = dataclasses.field(default_factory=dict)
    forced: str | None = None
    parallel: bool | None = None

    @property
    def reader(self) -> Body | None:
        """Reads the answer that ``form`` binds."""
        if self.forced is None:
            return None
        return ForcedArguments(self.forced) if self.forced else JsonCalls()

    def form(self, after_token_ids: tuple[int, ...], after_text: str) -> Form | None:
        """The grammar that forces the call: the arguments of one function, or an array of calls."""
        if self.forced is None:
            return None
        if self.forced:
            schema = _arguments(self.schemas[self.forced], "")
            definitions = _definitions(self.schemas[self.forced], "")
        else:
            definitions = {}
            options = []
            for i, (name, parameters) in enumerate(self.schemas.items()):
                definitions |= _definitions(parameters, f"{i}_")
                options.append(_call(name, _arguments(parameters, f"{i}_")))
            schema = {
                "type": "array",
                "items": {"anyOf": options},
                "minItems": 1,
                "maxItems": MAX_FORCED_CALLS if self.parallel else 1,
            }
        if definitions:
            schema["$defs"] = definitions
        params = StructuredOutputsParams(
            json=schema, after_token_ids=after_token_ids, after_text=after_text
        )
        return Form(params, "tool_choice")


def tool_use(body: ChatCompletionRequest) -> ToolUse:
    """What a body asks for.

    Raises:
        ValueError: a malformed tool, an unknown choice, or one that names no tool.
    """
    tools = body.tools or []
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"tools must have at most {MAX_TOOLS} entries, got {len(tools)}")
    schemas: dict[str, Schema] = {}
    for i, tool in enumerate(tools):
        name, parameters = _function(tool, f"tools[{i}]")
        schemas[name] = parameters
    parallel = body.parallel_tool_calls
    choice = body.tool_choice
    if choice is None or choice == "auto":
        return ToolUse(tools or None, schemas, None, parallel)
    if choice == "none":
        return ToolUse()
    if choice == "required":
        if not tools:
            raise ValueError("tool_choice 'required' needs tools")
        return ToolUse(tools, schemas, "", parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, schemas, parallel)
    if not isinstance(choice, dict):
        raise ValueError(
            f"tool_choice must be none, auto, required or a function, got {choice[:64]!r}"
        )
    function = choice.get("function")
    named = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(named, str):
        raise ValueError("tool_choice must name a function: {type, function: {name}}")
    if named not in schemas:
        raise ValueError(f"tool_choice names {named[:128]!r}, which is not among tools")
    return ToolUse(tools, schemas, named, parallel)


def _allowed(
    choice: dict[str, Any],
    tools: list[dict[str, Any]],
    schemas: dict[str, Schema],
    parallel: bool | None,
) -> ToolUse:
    """All tools are shown, so that the prompt stays the same; only some may be called."""
    allowed = choice.get("allowed_tools", choice)
    entries = allowed.get("tools") if isinstance(allowed, dict) else None
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    if not isinstance(entries, list) or not entries or mode not in ("auto", "required"):
        raise ValueError("tool_choice.allowed_tools needs a mode (auto or required) and tools")
    names = []
    for entry in entries:
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in schemas:
            raise ValueError(f"tool_choice allows {str(name)[:128]!r}, which is not among tools")
        names.append(name)
    chosen = {name: schemas[name] for name in names}
    return ToolUse(tools, chosen, "" if mode == "required" else None, parallel)


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _arguments(parameters: Schema, prefix: str) -> dict[str, Any]:
    """The schema of a call's arguments: an object, closed unless it says otherwise.

    A model that is free to invent parameters does so for ever.
    """
    schema = {k: v for k, v in parameters.items() if k not in ("$defs", "definitions")}
    schema["type"] = "object"  # and nothing else that it may name beside
    schema.setdefault("properties", {})
    if not any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref", "patternProperties")):
        schema.setdefault("additionalProperties", False)
    moved: dict[str, Any] = _with_moved_refs(schema, prefix)
    return moved


def _definitions(parameters: Schema, prefix: str) -> dict[str, Any]:
    """Shared parts of a schema, under names that no other tool's parts have."""
    return {
        prefix + name: _with_moved_refs(part, prefix)
        for key in ("$defs", "definitions")
        if isinstance(parts := parameters.get(key), dict)
        for name, part in parts.items()
    }


def _with_moved_refs(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_with_moved_refs(each, prefix) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _LOCAL_REF.sub(lambda _: f"#/$defs/{prefix}", each, count=1)
        if key == "$ref" and isinstance(each, str)
        else _with_moved_refs(each, prefix)
        for key, each in value.items()
    }


def _function(tool: dict[str, Any], path: str) -> tuple[str, Schema]:
    if tool.get("type") != "function":
        raise ValueError(f"{path}.type must be 'function'")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path}.function.name is required")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path}.function.name must be letters, digits, '_', '-' and '.'")
    parameters = function.get("parameters") if isinstance(function, dict) else None
    if parameters is not None and not isinstance(parameters, dict):
        raise ValueError(f"{path}.function.parameters must be a JSON schema object")
    type_ = (parameters or {}).get("type") or "object"
    if "object" not in (type_ if isinstance(type_, list) else [type_]):
        raise ValueError(f"{path}.function.parameters.type must be 'object'")
    return name, parameters or {}
