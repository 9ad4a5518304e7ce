"""Phi-4-mini: a JSON array after a word or between tags."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import JsonCalls
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("functools", "<|tool_call|>"),
    body=JsonCalls(close="<|/tool_call|>"),
    template=(("<|tool|>", "<|/tool|>"),),
    model_types=("phi4mm",),
)
