"""Hermes, Qwen 2.5 and Qwen 3: JSON objects between tags."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import JsonCalls
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<tool_call>",),
    body=JsonCalls(close="</tool_call>"),
    template=(("<tool_call>", '"name"', '"arguments"'), ("<tool_call>", "tool_call.arguments")),
    model_types=("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"),
)
