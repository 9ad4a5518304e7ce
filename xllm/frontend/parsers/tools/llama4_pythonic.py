"""Llama 4: a list of calls in Python notation, with or without tags around it."""

from __future__ import annotations

from xllm.frontend.parsers.format import ToolFormat
from xllm.frontend.parsers.pythonic import PythonicCalls

FORMAT = ToolFormat(
    opens=("<|python_start|>",),
    bare="[",
    body=PythonicCalls(close="<|python_end|>"),
    template=(("<|python_start|>",),),
    model_types=("llama4", "llama4_text"),
)
