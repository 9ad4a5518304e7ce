"""Kimi K2 Thinking: thoughts between tags, which a tool call ends too."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    until_calls=True,
    template=(("<|im_assistant|>", "</think>"),),
    model_types=("kimi_k2",),
)
