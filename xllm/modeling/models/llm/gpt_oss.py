"""gpt-oss: sparse blocks with biases everywhere, attention sinks, every second layer windowed."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.rope_config import parse_rope
from xllm.modeling.models.config import decoder_config, required, sliding_layers
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.quantization.base import QuantMethod

# What the activation clamped_swiglu computes with.
_FIXED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


class Model(CausalLM):
    """The shared skeleton; checkpoints have a name of their own for the router."""

    renames = {".mlp.router.": ".mlp.gate."}


def from_hf_config(
    hf_config: dict[str, Any], *, method: QuantMethod, dtype: torch.dtype, **limits: Any
) -> Model:
    """Build the model, weights unset.

    Args:
        limits: ``max_len`` and ``vocab_size`` of ``decoder_config``.

    Raises:
        ValueError: a field of the config is missing or not supported.
    """
    hf_config = {"sliding_window": 128, "rms_norm_eps": 1e-5} | hf_config
    for name, value in _FIXED.items():
        if hf_config.get(name, value) != value:
            raise ValueError(f"config.json: {name} must be {value}, got {hf_config[name]!r}")
    num_layers = required(hf_config, "num_hidden_layers")
    attention_bias = bool(hf_config.get("attention_bias", True))
    head_dim = required({"head_dim": 64} | hf_config, "head_dim")
    rope = parse_rope(hf_config, head_dim, default_theta=150_000.0)
    config = decoder_config(
        hf_config,
        head_dim=head_dim,
        activation="clamped_swiglu",
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        attention_sinks=True,
        ropes=(rope,) * num_layers,
        windows=sliding_layers(hf_config, tuple(i % 2 == 0 for i in range(num_layers))),
        experts=ExpertsConfig(
            num_experts=required(hf_config, "num_local_experts"),
            num_experts_per_token=required(hf_config, "num_experts_per_tok"),
            intermediate_size=required(hf_config, "intermediate_size"),
            normalize=True,
            biased=True,
        ),
        **limits,
    )
    return Model(config, method, dtype)
