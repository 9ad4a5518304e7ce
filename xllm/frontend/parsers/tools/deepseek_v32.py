"""DeepSeek V3.2: invocations with one tag per parameter, each saying if it is text."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import Section, TaggedCall
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<｜DSML｜function_calls>",),
    body=Section(
        begin="<｜DSML｜invoke",
        call=TaggedCall(
            begin="<｜DSML｜invoke",
            open='name="',
            name_ends=('">',),
            key_open='<｜DSML｜parameter name="',
            key_close='">',
            value_close="</｜DSML｜parameter>",
            close="</｜DSML｜invoke>",
            typed='" string="',
        ),
        close=("</｜DSML｜function_calls>",),
    ),
    template=(("<｜DSML｜",), ("｜DSML｜", "invoke")),
    model_types=("deepseek_v32",),
)
