"""Token counts of an answer."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """How the prompt's tokens were obtained."""

    cached_tokens: int = 0  # found in the prefix cache


class Usage(msgspec.Struct):
    """Tokens read and written. A prompt counts once, whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
