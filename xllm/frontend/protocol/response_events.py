"""The typed events of a response's stream, numbered from 0."""

from __future__ import annotations

from typing import Any

import msgspec

from xllm.frontend.protocol.responses import OutputItem, OutputText, ReasoningText, Response


class ResponseEvent(msgspec.Struct, kw_only=True, gc=False):
    """Any event; ``sequence_number`` is its place in the stream."""

    sequence_number: int = -1


class ResponseCreated(ResponseEvent, tag="response.created", kw_only=True, gc=False):
    """The response exists."""

    response: Response


class ResponseInProgress(ResponseEvent, tag="response.in_progress", kw_only=True, gc=False):
    """The model works on it."""

    response: Response


class ResponseCompleted(ResponseEvent, tag="response.completed", kw_only=True, gc=False):
    """All of it is there."""

    response: Response


class ResponseIncomplete(ResponseEvent, tag="response.incomplete", kw_only=True, gc=False):
    """It was cut off."""

    response: Response


class ResponseFailed(ResponseEvent, tag="response.failed", kw_only=True, gc=False):
    """It went wrong."""

    response: Response


class ItemAdded(ResponseEvent, tag="response.output_item.added", kw_only=True, gc=False):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(ResponseEvent, tag="response.output_item.done", kw_only=True, gc=False):
    """An item is complete."""

    output_index: int
    item: OutputItem


class ItemPlace(ResponseEvent, kw_only=True, gc=False):
    """An event inside an item."""

    item_id: str
    output_index: int


class PartPlace(ItemPlace, kw_only=True, gc=False):
    """An event inside a part of an item; every item of ours has one part."""

    content_index: int = 0


class PartAdded(PartPlace, tag="response.content_part.added", kw_only=True, gc=False):
    """A part begins."""

    part: OutputText | ReasoningText


class PartDone(PartPlace, tag="response.content_part.done", kw_only=True, gc=False):
    """A part is complete."""

    part: OutputText | ReasoningText


class TextGrew(PartPlace, tag="response.output_text.delta", kw_only=True, gc=False):
    """More of what the model says."""

    delta: str
    logprobs: list[Any] = []


class TextDone(PartPlace, tag="response.output_text.done", kw_only=True, gc=False):
    """All of it."""

    text: str
    logprobs: list[Any] = []


class ReasoningGrew(PartPlace, tag="response.reasoning_text.delta", kw_only=True, gc=False):
    """More of what the model thinks."""

    delta: str


class ReasoningDone(PartPlace, tag="response.reasoning_text.done", kw_only=True, gc=False):
    """All of it."""

    text: str


class ArgumentsGrew(
    ItemPlace, tag="response.function_call_arguments.delta", kw_only=True, gc=False
):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(ItemPlace, tag="response.function_call_arguments.done", kw_only=True, gc=False):
    """All of them."""

    name: str
    arguments: str
