"""A list of calls in Python notation (Llama 3.2, ToolACE, OLMo)."""

from __future__ import annotations

from xllm.frontend.parsers.format import ToolFormat
from xllm.frontend.parsers.pythonic import PythonicCalls

FORMAT = ToolFormat(
    bare="[",
    body=PythonicCalls(),
    template=(("[func_name1(params_name1=params_value1",),),
)
