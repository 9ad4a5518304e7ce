"""Gemma 3 (text): sandwich norms, query/key norms, and two kinds of layers.

Five sliding-window layers, whose rotation is local, to one full layer, whose rotation has its own
base and scaling. Norm weights are stored as ``w`` of ``1 + w``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.attention.base import ForwardContext
from xllm.modeling.layers.norm import Reader, RMSNorm
from xllm.modeling.layers.rope_config import RopeConfig, parse_rope
from xllm.modeling.models.config import DecoderConfig, decoder_config, required, sliding_layers
from xllm.modeling.models.decoder import CausalLM, DecoderLayer, norm
from xllm.modeling.quantization.base import QuantMethod


class Gemma3Layer(DecoderLayer):
    """A block with a norm after attention and after the MLP as well as before."""

    def create_inner_norms(
        self, config: DecoderConfig, dtype: torch.dtype, mlp_reader: Reader | None
    ) -> None:
        self.post_attention_layernorm = norm(config, dtype)
        self.pre_feedforward_layernorm = norm(config, dtype, reader=mlp_reader)
        self.post_feedforward_layernorm = norm(config, dtype)

    def forward(
        self,
        x: Tokens,
        residual: Tensor,
        following: RMSNorm,
        positions: Tensor,
        context: ForwardContext,
    ) -> tuple[Tokens, Tensor]:
        out = self.post_attention_layernorm(self.self_attn(x, positions, context))
        x, residual = self.pre_feedforward_layernorm.add(out, residual)
        return following.add(self.post_feedforward_layernorm(self.mlp(x)), residual)


class Model(CausalLM):
    """Text part only; the vision tensors of a multimodal checkpoint are skipped."""

    layer_class = Gemma3Layer
    renames = {
        "language_model.model.": "model.",
        "model.language_model.": "model.",
        "language_model.lm_head.": "lm_head.",
    }
    ignored = (
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    )


def from_hf_config(
    hf_config: dict[str, Any], *, method: QuantMethod, dtype: torch.dtype, **limits: Any
) -> Model:
    """Build the model, weights unset.

    Args:
        limits: ``max_len`` and ``vocab_size`` of ``decoder_config``.

    Raises:
        ValueError: a field of the config is missing or not supported.
    """
    hf_config = _DEFAULTS | hf_config
    attention_bias = bool(hf_config.get("attention_bias", False))
    windows = layer_windows(hf_config)
    config = decoder_config(
        hf_config,
        ropes=layer_ropes(hf_config, windows),
        windows=windows,
        attention_scale=float(hf_config["query_pre_attn_scalar"]) ** -0.5,
        qk_norm=True,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm_offset=1.0,
        embedding_scale=float(hf_config["hidden_size"]) ** 0.5,
        attention_softcap=float(hf_config.get("attn_logit_softcapping") or 0.0),
        logits_softcap=float(hf_config.get("final_logit_softcapping") or 0.0),
        **limits,
    )
    return Model(config, method, dtype)


def layer_windows(hf_config: dict[str, Any]) -> tuple[int, ...]:
    """Window per layer; without ``layer_types``, every ``sliding_window_pattern``-th is full."""
    pattern = hf_config.get("sliding_window_pattern") or 6
    num_layers = required(hf_config, "num_hidden_layers")
    return sliding_layers(hf_config, tuple((i + 1) % pattern != 0 for i in range(num_layers)))


def layer_ropes(hf_config: dict[str, Any], windows: tuple[int, ...]) -> tuple[RopeConfig, ...]:
    """Rotation per layer: scaled with base 1e6 in full layers, plain with base 1e4 in sliding."""
    head_dim = hf_config["head_dim"]
    full = parse_rope(hf_config, head_dim, layer_type="full_attention", default_theta=1_000_000.0)
    nested = (hf_config.get("rope_parameters") or {}).get("sliding_attention")
    local = {
        "max_position_embeddings": hf_config.get("max_position_embeddings", 131_072),
        "rope_theta": hf_config.get("rope_local_base_freq", 10_000.0),
        "rope_parameters": nested,
    }
    sliding = parse_rope(local, head_dim)
    return tuple(sliding if window else full for window in windows)


# Published multimodal configs leave out what equals these.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}
