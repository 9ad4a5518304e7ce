"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

import msgspec

from xllm.frontend.protocol.chat import ChatMessage


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Text as ``prompt`` (or ``content``), or ``messages`` to render with the chat template."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    truncate_prompt_tokens: None = None  # not served


class TokenizeResponse(msgspec.Struct):
    """Token ids, and their printable forms if asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of the token ids, special tokens included."""

    prompt: str
