"""Messages to prompt text, by the model's own Jinja template."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from xllm.frontend.text.jinja_env import make_environment

# What a template may not be given from outside, because the renderer provides it.
RESERVED_NAMES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
    }
)
RENDER_SECONDS = 5.0
_ENVIRONMENT = make_environment()
_PROBE = "xllm-probe-7f3a"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
Message = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """What a template expects, found by rendering probes once at load."""

    content_parts: bool  # content must be a list of parts; else one string
    string_arguments: bool  # tool-call arguments must be JSON text; else a mapping


class ChatTemplate:
    """A compiled chat template. Thread-safe.

    Args:
        source: Jinja source.
        tool_source: of conversations with tools, where it is another.
        bos_token: given to the template under this name.
        eos_token: likewise.

    Raises:
        ValueError: the source is not valid Jinja.

    Attributes:
        needs: what the template expects.
        with_tools: the template of conversations with tools, which may be this one.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> None:
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except TemplateError as error:
            raise ValueError(f"chat template is not valid: {error}") from None
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.needs = self._probe()
        self.with_tools = self
        if tool_source is not None:
            self.with_tools = ChatTemplate(tool_source, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        max_chars: int | None = None,
    ) -> str:
        """Render a conversation.

        Args:
            messages: turns with ``role`` and ``content`` as ``needs`` says.
            tools: function definitions for the template.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: cut the text right after the last message's content, so that
                the model goes on with it.
            variables: further names for the template, none of ``RESERVED_NAMES``.
            max_chars: give up on a text longer than this.

        Raises:
            ValueError: the template refused the conversation (the message is its own sentence),
                left the sandbox, or took too long; or the final message is not in the text.
        """
        mark = ""
        if continue_final_message:
            mark = f"<{secrets.token_hex(12)}>"
            messages = [*messages[:-1], _with_mark(messages[-1], mark)]
        # One mapping, not keywords: a request may call its variables what it likes.
        names = {
            **(variables or {}),
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
        }
        text = self._render(names, max_chars)
        if not mark:
            return text
        kept, found, _ = text.rpartition(mark)
        if not found:
            raise ValueError(
                "continue_final_message cannot be honoured: the chat template drops the content "
                "of the final message"
            )
        return kept

    def _render(self, names: Mapping[str, Any], max_chars: int | None) -> str:
        deadline = time.monotonic() + RENDER_SECONDS
        pieces = []
        length = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                length += len(piece)
                if max_chars is not None and length > max_chars:
                    raise ValueError(f"messages render to more than {max_chars} characters")
                if time.monotonic() > deadline:
                    raise ValueError(f"messages took more than {RENDER_SECONDS:g} s to render")
        except TemplateError as error:
            raise ValueError(f"messages cannot be rendered: {error.message}") from None
        except RecursionError:
            raise ValueError("messages or tools nest too deeply for the chat template") from None
        except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
            # The template trusted a shape that this conversation does not have.
            raise ValueError(f"messages do not suit the chat template: {error!r}") from None
        return "".join(pieces)

    def _probe(self) -> TemplateNeeds:
        return TemplateNeeds(
            content_parts=not self._shows(_PROBE, [_turn(_PROBE)])
            and self._shows(_PROBE, [_turn([{"type": "text", "text": _PROBE}])]),
            string_arguments=not self._shows(f'"{_PROBE}"', _call({_PROBE: 1}))
            and self._shows(f'"{_PROBE}"', _call(f'{{"{_PROBE}": 1}}')),
        )

    def _shows(self, expected: str, messages: list[Message]) -> bool:
        return any(expected in self._try(messages, tools) for tools in (None, [_PROBE_TOOL]))

    def _try(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        try:
            return self.render(messages, tools=tools)
        except ValueError:
            return ""


def _with_mark(message: Message, mark: str) -> Message:
    content = message.get("content")
    if isinstance(content, list) and content:
        last = {**content[-1], "text": str(content[-1].get("text", "")) + mark}
        return {**message, "content": [*content[:-1], last]}
    return {**message, "content": (content or "") + mark}


def _turn(content: Any) -> Message:
    return {"role": "user", "content": content}


def _call(arguments: Any) -> list[Message]:
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "call00000", "type": "function", "function": function}
    return [
        _turn("x"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "name": "probe", "content": "x"},
        {"role": "assistant", "content": "x"},
    ]
