"""GGUF metadata as the config files that a Hugging Face folder would hold. No torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from xllm.core.utils.gguf import GgufHeader, GgufTensor

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
}
# Tokens that end an answer although the file names only one EOS id, as llama.cpp treats them.
_END_TOKENS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>")
)
# Below ``rope.scaling.``: what the names of a config are, and what must be as usual.
_SCALING = {
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attention_factor",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_UNREAD_SCALING = {"yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
_CONTROL, _USER_DEFINED = 3, 4  # token types
_F32 = 0
_POOLS_LAST = 3
_GEMMA3_27B_LAYERS = 62


def config_from_header(header: GgufHeader, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The equivalent of ``config.json``.

    Raises:
        ValueError: an architecture that is not supported, or required metadata is missing.
    """
    architecture = header.metadata.get("general.architecture")
    if architecture not in MODEL_TYPES:
        raise ValueError(
            f"GGUF architecture {architecture!r} is not supported; known: "
            f"{', '.join(sorted(MODEL_TYPES))}"
        )
    if (count := header.metadata.get("split.count", 1)) > 1:
        raise ValueError(
            f"{path} is one of {count} parts of a split GGUF file; join them with llama.cpp's "
            "llama-gguf-split --merge"
        )
    fields = _Fields(header.metadata, architecture)
    hidden_size, num_heads = fields.need("embedding_length"), fields.need("attention.head_count")
    head_dim = fields.need("attention.key_length", hidden_size // num_heads)
    if (value_dim := fields.need("attention.value_length", head_dim)) != head_dim:
        raise ValueError(
            f"GGUF metadata {architecture}.attention.value_length must be key_length "
            f"({head_dim}), got {value_dim}"
        )
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES[architecture],
        "hidden_size": hidden_size,
        "intermediate_size": fields.need("feed_forward_length"),
        "num_hidden_layers": fields.need("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.need("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.get("attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": fields.need("context_length"),
        "vocab_size": _embedding_rows(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "rope_parameters": _rope(header, fields, head_dim, path),
        "eos_token_id": end_token_ids(header.metadata),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }
    if pooling := fields.get("pooling_type", 0):
        if pooling != _POOLS_LAST:
            raise ValueError(
                f"GGUF metadata {architecture}.pooling_type must be {_POOLS_LAST} (the last "
                f"token), got {pooling}"
            )
        config["architectures"] = ["Model"]  # without a head: for embeddings
    window = fields.get("attention.sliding_window", 0)
    if architecture == "gemma3":
        config |= _gemma3(fields, config, window)
    elif architecture == "qwen3moe":
        config |= _experts(fields) | {
            "moe_intermediate_size": fields.need("expert_feed_forward_length"),
            "norm_topk_prob": True,  # not stored: the published models' own
        }
    elif architecture == "llama" and fields.get("expert_count", 0):
        config |= _experts(fields) | {"model_type": "mixtral", "sliding_window": window}
    elif architecture == "llama" and window:
        config |= {"model_type": "mistral", "sliding_window": window}
    return config


def end_token_ids(metadata: dict[str, Any]) -> list[int]:
    """Ids that end an answer: EOS, end of turn, and the known end markers of the vocabulary."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    ids = {int(token_id) for token_id in found if token_id is not None}
    types = metadata.get("tokenizer.ggml.token_type")
    if types is not None:
        tokens = metadata.get("tokenizer.ggml.tokens", [])
        special = np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED))
        ids |= {int(i) for i in special if i < len(tokens) and tokens[i] in _END_TOKENS}
    return sorted(ids)


class _Fields:
    """Metadata below ``<architecture>.``"""

    def __init__(self, metadata: dict[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._architecture = architecture

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._architecture}.{name}", default)

    def need(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value <= 0:
            raise ValueError(
                f"GGUF metadata {self._architecture}.{name} must be a positive integer, "
                f"got {value!r}"
            )
        return value


def _embedding_rows(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError("the GGUF file has no token_embd.weight matrix")
    return embedding.shape[0]


def _rope(
    header: GgufHeader, fields: _Fields, head_dim: int, path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Rotation: base, scaling, and Llama 3's scaling, which is stored as divisors in a tensor."""
    rope: dict[str, Any] = {"rope_theta": fields.get("rope.freq_base", 10_000.0)}
    rotary_dim = fields.get("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        rope["partial_rotary_factor"] = rotary_dim / head_dim
    # A factor without a type is linear; files of 2023 have another name for it.
    factor = fields.get("rope.scaling.factor") or fields.get("rope.scale_linear")
    kind = fields.get("rope.scaling.type", "linear" if factor else "none")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": factor}
        for key, name in _SCALING.items():
            if value := fields.get(f"rope.scaling.{key}"):
                rope[name] = value
        for key, usual in _UNREAD_SCALING.items():
            if (value := fields.get(f"rope.scaling.{key}", usual)) != usual:
                raise ValueError(f"GGUF metadata rope.scaling.{key} is not supported, got {value}")
    factors = header.tensors.get("rope_freqs.weight")
    if factors is not None:
        if kind != "none":
            raise ValueError(f"the GGUF file has rope_freqs.weight and scaling of type {kind!r}")
        rope |= {"rope_type": "freq_factors", "freq_factors": _read_floats(header, factors, path)}
    return rope


def _read_floats(
    header: GgufHeader, tensor: GgufTensor, path: str | os.PathLike[str]
) -> list[float]:
    count = tensor.shape[0] if len(tensor.shape) == 1 else 0
    if tensor.type_id != _F32 or not count or tensor.offset + 4 * count > header.file_size:
        raise ValueError(f"tensor {tensor.name} must be a float32 vector inside the file")
    values = np.fromfile(path, dtype="<f4", count=count, offset=tensor.offset)
    return [float(value) for value in values]


def _experts(fields: _Fields) -> dict[str, Any]:
    return {
        "num_local_experts": fields.need("expert_count"),
        "num_experts_per_tok": fields.need("expert_used_count"),
    }


def _gemma3(fields: _Fields, config: dict[str, Any], window: int) -> dict[str, Any]:
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    # The 27B model scales queries by hidden size per head; metadata does not say so.
    per_head = config["hidden_size"] // config["num_attention_heads"]
    pattern = fields.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, np.ndarray):  # which layers slide, one by one
        kinds = ("full_attention", "sliding_attention")
        layers = {"layer_types": [kinds[bool(slides)] for slides in pattern]}
    else:
        layers = {"sliding_window_pattern": pattern}
    return layers | {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window or 512,
        "query_pre_attn_scalar": per_head if num_layers == _GEMMA3_27B_LAYERS else head_dim,
        "rope_local_base_freq": fields.get("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": fields.get("final_logit_softcapping"),
        "attn_logit_softcapping": fields.get("attn_logit_softcapping"),
    }
