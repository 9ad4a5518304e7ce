"""Kimi K2: numbered calls with JSON arguments, in a section of calls."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import NamedCall, Section
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    # Some checkpoints write the section's marker in the singular.
    opens=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    body=Section(
        begin="<|tool_call_begin|>",
        call=NamedCall(
            separators=("<|tool_call_argument_begin|>",),
            close="<|tool_call_end|>",
            name_is_id=True,
        ),
        close=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    ),
    template=(("<|tool_calls_section_begin|>",),),
    model_types=("kimi_k2",),
)
