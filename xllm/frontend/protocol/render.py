"""``/v1/chat/completions/render`` and ``/v1/completions/render``."""

from __future__ import annotations

import msgspec

from xllm.core.request.sampling import SamplingParams


class RenderedPrompt(msgspec.Struct):
    """What the engine would be given: text (null for a prompt of ids), tokens and sampling.

    ``max_tokens`` is the answer's limit after the context length has been applied, and
    ``stop_token_ids`` every token that would end it.
    """

    text: str | None
    token_ids: list[int]
    num_tokens: int
    max_tokens: int
    stop_token_ids: list[int]
    sampling_params: SamplingParams


class RenderedPrompts(msgspec.Struct):
    """One entry per prompt of a completion request."""

    prompts: list[RenderedPrompt]
