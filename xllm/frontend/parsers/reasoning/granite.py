"""Granite 3: thoughts and answer under headings (3.2) or between tags (3.3)."""

from __future__ import annotations

from xllm.frontend.parsers.format import ReasoningFormat

FORMAT = ReasoningFormat(
    pairs=(
        ("Here is my thought process:", "Here is my response:"),
        ("Here's my thought process:", "Here's my response:"),
        ("<think>", "</think>"),
    ),
    wraps=("<response>", "</response>"),
    template=(("<|start_of_role|>", "thinking"),),
    model_types=("granite", "granitemoe", "granitemoehybrid"),
)
