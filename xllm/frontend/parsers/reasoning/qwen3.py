"""Qwen 3: thoughts between tags; the template opens or closes them."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    eager=True,
    template=(("<think>", "</think>", "enable_thinking"), ("<|im_start|>", "</think>")),
    model_types=("qwen3", "qwen3_moe", "qwen3_next"),
)
