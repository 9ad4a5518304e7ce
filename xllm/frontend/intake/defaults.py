"""What applies when a request does not say: sampling values and the tokens that end a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xllm.core.config.files import ModelFiles
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.text import Tokenizer

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Control tokens that close a turn; checkpoints often name only the token that closes a document.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
_FUNCTION_ENDS = ("<start_function_response>",)  # the caller's turn, not the model's


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling fields of the model's generation config; a request's own values win."""

    values: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> SamplingDefaults:
        """Defaults of a ``generation_config.json``.

        Raises:
            ValueError: the file holds a value that no request could use.
        """
        values = {name: config[name] for name in _FIELDS if config.get(name) is not None}
        try:
            SamplingParams(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"generation_config.json: {error}") from None
        return cls(values)


def end_token_ids(files: ModelFiles, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every id that ends a text of this model, sorted.

    These are the EOS ids of the generation config (or model config), the tokenizer's EOS, and
    the known control tokens that end a chat turn.
    """
    ids = set(files.eos_token_ids)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    # Where messages have channels, the end of one is not the end of the turn.
    has_channels = tokenizer.token_id("<|channel|>") is not None
    for name in (*_TURN_ENDS, *_FUNCTION_ENDS):
        if has_channels and name == "<|end|>":
            continue
        token_id = tokenizer.token_id(name)
        if token_id is not None and token_id in tokenizer.special_ids:
            ids.add(token_id)
    return tuple(sorted(ids))
