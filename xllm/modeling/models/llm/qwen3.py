"""Qwen3 dense: per-head RMS norm of queries and keys before the rotation."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.models.config import decoder_config
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.llm.qwen2 import qwen_windows
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
    attention_bias = bool(hf_config.get("attention_bias", False))
    config = decoder_config(
        {"head_dim": 128} | hf_config,
        qk_norm=True,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        windows=qwen_windows(hf_config),
        **limits,
    )
    return Model(config, method, dtype)
