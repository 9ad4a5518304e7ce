"""GLM 4.5 and later: thoughts between tags; the template can switch them off."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    eager=True,
    template=(("<|assistant|>", "</think>", "enable_thinking"),),
    model_types=("glm4_moe", "glm4_moe_lite"),
)
