"""DeepSeek V3.1: a name and a JSON object per call, in a section of calls."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import NamedCall, Section
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<｜tool▁calls▁begin｜>",),
    body=Section(
        begin="<｜tool▁call▁begin｜>",
        call=NamedCall(separators=("<｜tool▁sep｜>",), close="<｜tool▁call▁end｜>"),
        close=("<｜tool▁calls▁end｜>",),
    ),
    template=(("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),),
)
