"""FunctionGemma: bare keys and texts between escape marks (``parsers.braced``)."""

from __future__ import annotations

from xllm.frontend.parsers.braced import BracedCall
from xllm.frontend.parsers.format import ToolFormat

FORMAT = ToolFormat(
    opens=("<start_function_call>",),
    body=BracedCall(prefix="call:", quote="<escape>", close="<end_function_call>"),
    template=(("<start_function_call>",),),
)
