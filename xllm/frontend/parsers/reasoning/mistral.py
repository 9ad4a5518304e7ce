"""Magistral: thoughts between control tokens."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(("[THINK]", "[/THINK]"),),
    template=(("[THINK]",),),
)
