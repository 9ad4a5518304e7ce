"""Qwen3-Coder: a function tag with one tag per parameter."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import TaggedCall
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    # The outer tag is often left out, or holds several functions.
    opens=("<tool_call>", "<function="),
    body=TaggedCall(
        open="<function=",
        opens_alone=True,
        name_ends=(">",),
        key_open="<parameter=",
        key_close=">",
        value_close="</parameter>",
        close="</function>",
        outer_close="</tool_call>",
        line_values=True,
        begin="<function=",
    ),
    template=(("<tool_call>", "<function=", "<parameter="),),
    model_types=("qwen3_next", "qwen3_5", "qwen3_5_moe"),
)
