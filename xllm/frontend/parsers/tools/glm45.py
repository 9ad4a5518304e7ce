"""GLM 4.5 and 4.6: a name, then a key and a value tag per parameter."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import TaggedCall
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<tool_call>",),
    body=TaggedCall(
        key_open="<arg_key>",
        key_close="</arg_key>",
        value_open="<arg_value>",
        value_close="</arg_value>",
        close="</tool_call>",
        begin="<tool_call>",
    ),
    template=(("<arg_key>", "<arg_value>"),),
    model_types=("glm4_moe",),
)
