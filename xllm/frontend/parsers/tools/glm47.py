"""GLM 4.7 and 5: as GLM 4.5, without line breaks between the parts."""

from __future__ import annotations

from xllm.frontend.parsers.format import ToolFormat
from xllm.frontend.parsers.tools import glm45

# The reader takes white space between the parts as it comes, so only the models differ.
FORMAT = ToolFormat(
    opens=glm45.FORMAT.opens,
    body=glm45.FORMAT.body,
    template=(("<arg_key>", "<arg_value>", "{function-name}<arg_key>"),),
    model_types=("glm4_moe_lite", "glm_moe_dsa"),
)
