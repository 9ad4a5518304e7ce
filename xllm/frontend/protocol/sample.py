"""``/v1/sample``: the model's distribution at chosen places of a prompt. Nothing is generated."""

from __future__ import annotations

from typing import Literal

import msgspec

from xllm.frontend.protocol.pooling import PoolingUsage


class LiteralSelector(msgspec.Struct, tag="literal"):
    """Every occurrence of ``value`` in the prompt's text; the place is its first token."""

    value: str


class PositionSelector(msgspec.Struct, tag="positions"):
    """Tokens by their place; -1 is the last."""

    positions: list[int]


class SampleRequest(msgspec.Struct, kw_only=True):
    """A prompt as text or token ids, and where to look."""

    prompt: str | list[int]
    selector: LiteralSelector | PositionSelector
    model: str | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    truncate_prompt_tokens: None = None  # not served
    user: str | None = None


class Candidate(msgspec.Struct):
    """A token with its probability's logarithm."""

    token_id: int
    token: str
    logprob: float


class SamplePlace(msgspec.Struct):
    """What the model expects at ``position``, given the tokens before it.

    ``token`` is the one that stands there, ``rank`` its place in the distribution, 1 the likeliest.
    """

    index: int
    position: int
    token_id: int
    token: str
    logprob: float
    rank: int
    top_logprobs: list[Candidate]


class SampleResponse(msgspec.Struct):
    """One entry per place, in the order of the prompt."""

    id: str
    created: int
    model: str
    choices: list[SamplePlace]
    usage: PoolingUsage
    object: Literal["sample_completion"] = "sample_completion"
