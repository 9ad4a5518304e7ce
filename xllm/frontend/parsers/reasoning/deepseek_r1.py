"""DeepSeek R1: the answer begins with thoughts, often without the opening tag."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    implied=True,
    template=(("<｜Assistant｜>", "</think>"),),
)
