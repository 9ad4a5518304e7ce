"""DeepSeek V3.1 and 3.2: thoughts only where the prompt opens them."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    template=(("<｜Assistant｜>", "</think>", "thinking"),),
    model_types=("deepseek_v32",),
)
