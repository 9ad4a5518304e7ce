"""Qwen2 and Qwen2.5: biases on q, k and v; a sliding window in the upper layers if enabled."""

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
    config = decoder_config(hf_config, qkv_bias=True, windows=qwen_windows(hf_config), **limits)
    return Model(config, method, dtype)


def qwen_windows(hf_config: dict[str, Any]) -> tuple[int, ...]:
    """Window per layer: none unless ``use_sliding_window``, then from ``max_window_layers`` up."""
    num_layers = required(hf_config, "num_hidden_layers")
    if not hf_config.get("use_sliding_window", False):
        return (0,) * num_layers
    first = hf_config.get("max_window_layers", 28)
    hf_config = {"sliding_window": 4096} | hf_config
    return sliding_layers(hf_config, tuple(i >= first for i in range(num_layers)))
