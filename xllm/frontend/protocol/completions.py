"""``/v1/completions``: request, answer and stream chunks (``gc=False`` as in ``chat``)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from xllm.frontend.protocol.sampling import CommonFields
from xllm.frontend.protocol.usage import Usage


class CompletionRequest(CommonFields, kw_only=True):
    """Body of a completion request.

    ``prompt`` is a string, a list of strings, a list of token ids, or a list of lists of them.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None
    prompt_embeds: Any = None


class CompletionLogprobs(msgspec.Struct, gc=False):
    """Parallel lists, one entry per token; ``text_offset`` counts characters of the text.

    Where they are many, the entries of ``top_logprobs`` are JSON text already.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[Any]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, gc=False):
    """One answer or, in a stream, what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[Any] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, gc=False):
    """Answer of a completion request, or one event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: None = None
