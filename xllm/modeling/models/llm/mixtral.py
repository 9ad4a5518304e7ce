"""Mixtral: Mistral's attention, a sparse feed-forward block in every layer."""

from __future__ import annotations

from typing import Any

import torch

from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.models.config import decoder_config, required, sliding_layers
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.quantization.base import QuantMethod


class Model(CausalLM):
    """The shared skeleton; published checkpoints have names of their own for its sparse block."""

    renames = {
        ".block_sparse_moe.": ".mlp.",
        ".w1.weight": ".gate_proj.weight",
        ".w2.weight": ".down_proj.weight",
        ".w3.weight": ".up_proj.weight",
    }


def from_hf_config(
    hf_config: dict[str, Any], *, method: QuantMethod, dtype: torch.dtype, **limits: Any
) -> Model:
    """Build the model, weights unset.

    Args:
        limits: ``max_len`` and ``vocab_size`` of ``decoder_config``.

    Raises:
        ValueError: a field of the config is missing or not supported.
    """
    hf_config = {"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5} | hf_config
    pattern = (True,) * required(hf_config, "num_hidden_layers")
    config = decoder_config(
        hf_config,
        windows=sliding_layers(hf_config, pattern),
        experts=ExpertsConfig(
            num_experts=required(hf_config, "num_local_experts"),
            num_experts_per_token=required(hf_config, "num_experts_per_tok"),
            intermediate_size=required(hf_config, "intermediate_size"),
            normalize=True,
        ),
        **limits,
    )
    return Model(config, method, dtype)
