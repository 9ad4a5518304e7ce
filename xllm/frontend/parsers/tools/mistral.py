"""Mistral: a JSON array, or from tokenizer v11 on a name and a JSON object per tag."""

from __future__ import annotations

import dataclasses

from xllm.frontend.parsers.bodies import JsonCalls, NamedCall
from xllm.frontend.parsers.format import Draft, ToolFormat
from xllm.frontend.parsers.source import Reading


@dataclasses.dataclass(frozen=True)
class MistralCalls:
    """What follows the tag tells the two notations apart."""

    array: JsonCalls
    named: NamedCall

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read one array, or one call."""
        yield from draft.source.skip_blanks()
        body = self.array if (yield from draft.source.peek()) in ("[", "{") else self.named
        return (yield from body.read(draft, bare))


FORMAT = ToolFormat(
    opens=("[TOOL_CALLS]",),
    body=MistralCalls(
        JsonCalls(),
        NamedCall(id_tag="[CALL_ID]", separators=("[ARGS]",), optional_separator=True),
    ),
    short_ids=True,
    template=(("[TOOL_CALLS]",),),
    model_types=("mistral", "mistral3", "ministral", "mixtral"),
)
