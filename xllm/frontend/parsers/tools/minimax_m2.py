"""MiniMax M2: invocations with one tag per parameter, in a section of calls."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import Section, TaggedCall
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<minimax:tool_call>",),
    body=Section(
        begin="<invoke",
        call=TaggedCall(
            begin="<invoke",
            open='name="',
            name_ends=('">',),
            key_open='<parameter name="',
            key_close='">',
            value_close="</parameter>",
            close="</invoke>",
            line_values=True,
        ),
        close=("</minimax:tool_call>",),
    ),
    template=(("<minimax:tool_call>",),),
    model_types=("minimax_m2",),
)
