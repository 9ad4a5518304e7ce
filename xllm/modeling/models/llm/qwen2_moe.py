"""Qwen2 MoE (Qwen1.5-MoE, Qwen2-57B): Qwen2 attention, sparse blocks with a shared expert."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.models.config import decoder_config, required, sliding_layers
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.llm.qwen3_moe import dense_layers, qwen_experts
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
    shared = required(hf_config, "shared_expert_intermediate_size")
    config = decoder_config(
        hf_config,
        qkv_bias=bool(hf_config.get("qkv_bias", True)),
        windows=_windows(hf_config),
        experts=qwen_experts(hf_config, shared),
        dense_layers=dense_layers(hf_config),
        **limits,
    )
    return Model(config, method, dtype)


def _windows(hf_config: dict[str, Any]) -> tuple[int, ...]:
    """Window per layer: none unless ``use_sliding_window``, then in every second layer below
    ``max_window_layers``. Other Qwen models slide above that layer instead."""
    num_layers = required(hf_config, "num_hidden_layers")
    if not hf_config.get("use_sliding_window", False):
        return (0,) * num_layers
    end = hf_config.get("max_window_layers", 28)
    hf_config = {"sliding_window": 4096} | hf_config
    return sliding_layers(hf_config, tuple(i < end and i % 2 == 0 for i in range(num_layers)))
