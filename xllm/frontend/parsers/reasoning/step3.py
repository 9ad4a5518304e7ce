"""Step 3: the answer begins with thoughts, without the opening tag."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    implied=True,
    model_types=("step3", "step3_text", "step3_vl"),
)
