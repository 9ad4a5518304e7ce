"""Llama 3.1 to 3.3: a JSON object, with or without the tag before it."""

from __future__ import annotations

from xllm.frontend.parsers.bodies import JsonCalls
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<|python_tag|>",),
    bare="{[",
    body=JsonCalls(separator=";"),
    template=(('{"name": function name, "parameters":',), ("<|python_tag|>", '"parameters"')),
)
