"""Granite 3: a JSON array after a tag; Granite 4: JSON objects between tags."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import JsonCalls
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<|tool_call|>", "<tool_call>"),
    body=JsonCalls(close="</tool_call>"),
    template=(("<|tool_call|>", "<|start_of_role|>"), ("<tool_call>", "<|start_of_role|>")),
    model_types=("granite", "granitemoe", "granitemoehybrid"),
)
