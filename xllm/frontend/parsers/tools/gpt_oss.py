"""gpt-oss: calls are messages in a channel (``parsers.harmony``)."""

from __future__ import annotations

from xllm.frontend.parsers.harmony import Harmony

FORMAT = Harmony(
    template=(("<|channel|>", "<|message|>", "<|constrain|>"), ("<|channel|>analysis",)),
    model_types=("gpt_oss",),
)
