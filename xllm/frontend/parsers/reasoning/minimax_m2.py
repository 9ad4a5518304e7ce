"""MiniMax M2: the template opens the thoughts of every answer."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("<think>", "</think>"),),
    implied=True,
    template=(("<minimax:tool_call>", "</think>"),),
    model_types=("minimax_m2",),
)
