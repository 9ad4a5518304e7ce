"""DeepSeek V3 and R1: a fenced JSON block per call, in a section of calls."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import NamedCall, Section
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<｜tool▁calls▁begin｜>",),
    body=Section(
        begin="<｜tool▁call▁begin｜>",
        call=NamedCall(
            prefix="function<｜tool▁sep｜>",
            separators=("```json", "```"),
            suffix="```",
            close="<｜tool▁call▁end｜>",
        ),
        close=("<｜tool▁calls▁end｜>",),
    ),
    template=(("<｜tool▁calls▁begin｜>", "```json"),),
)
