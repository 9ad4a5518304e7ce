"""Qwen3 MoE: Qwen3 attention, sparse feed-forward blocks in all layers or in some."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.layers.moe.config import ExpertsConfig
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
    attention_bias = bool(hf_config.get("attention_bias", False))
    config = decoder_config(
        hf_config,
        qk_norm=True,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        windows=_windows(hf_config),
        experts=qwen_experts(hf_config),
        dense_layers=dense_layers(hf_config),
        **limits,
    )
    return Model(config, method, dtype)


def _windows(hf_config: dict[str, Any]) -> tuple[int, ...]:
    """Window per layer: the same in all, none unless ``use_sliding_window``."""
    slides = bool(hf_config.get("use_sliding_window", False))
    every = (slides,) * required(hf_config, "num_hidden_layers")
    return sliding_layers({"sliding_window": 4096} | hf_config | {"layer_types": None}, every)


def qwen_experts(hf_config: dict[str, Any], shared_intermediate_size: int = 0) -> ExpertsConfig:
    """The sparse blocks of a Qwen config, plus a shared expert if it has a size."""
    count = "num_experts" if "num_experts" in hf_config else "num_local_experts"
    return ExpertsConfig(
        num_experts=required(hf_config, count),
        num_experts_per_token=required(hf_config, "num_experts_per_tok"),
        intermediate_size=required(hf_config, "moe_intermediate_size"),
        normalize=bool(hf_config.get("norm_topk_prob", False)),
        shared_intermediate_size=shared_intermediate_size,
    )


def dense_layers(hf_config: dict[str, Any]) -> frozenset[int]:
    """Layers with one ordinary MLP: those listed, and those between every n-th sparse one."""
    step = hf_config.get("decoder_sparse_step") or 1
    every = range(required(hf_config, "num_hidden_layers"))
    listed = hf_config.get("mlp_only_layers") or ()
    return frozenset(i for i in every if i in listed or (i + 1) % step)
