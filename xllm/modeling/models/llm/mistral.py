"""Mistral: Llama with a sliding window in every layer, where the config sets one."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.models.config import decoder_config, required, sliding_layers
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.quantization.base import QuantMethod


class Model(CausalLM):
    """The shared skeleton as it is."""


def from_hf_config(
    hf_config: dict[str, Any], *, method: QuantMethod, dtype: torch.dtype, **limits: Any
) -> Model:
    """Build the model, weights unset.

    Args:
        limits: ``max_len`` and ``vocab_size`` of ``decoder_config``.

    Raises:
        ValueError: a field of the config is missing or not supported.
    """
    hf_config = {"sliding_window": 4096} | hf_config  # null is none, but left out it is this
    pattern = (True,) * required(hf_config, "num_hidden_layers")
    config = decoder_config(hf_config, windows=sliding_layers(hf_config, pattern), **limits)
    return Model(config, method, dtype)
