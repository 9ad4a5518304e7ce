"""A decoder's shape, read from ``config.json``. No torch: start-up checks need it too."""

from __future__ import annotations

import dataclasses
from typing import Any

from xllm.modeling.layers.fields import positive_int, positive_number
from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.rope_config import RopeConfig, longest_position, parse_rope

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_MULTIMODAL = ("gemma3",)
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """What the shared decoder skeleton needs to know. Per-layer facts are tuples."""

    num_rows: int  # of the embedding matrix: the config's vocab_size
    vocab_size: int  # of which are real tokens: what the tokenizer knows
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_len: int  # longest sequence that will be served
    ropes: tuple[RopeConfig, ...]
    windows: tuple[int, ...]  # 0 is full attention
    attention_scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    attention_sinks: bool = False
    experts: ExpertsConfig | None = None  # of every layer that is not dense
    dense_layers: frozenset[int] = frozenset()


def decoder_config(
    hf_config: dict[str, Any],
    *,
    max_len: int | None = None,
    vocab_size: int | None = None,
    **family: Any,
) -> DecoderConfig:
    """The common fields of a Hugging Face config; ``family`` overrides or adds fields.

    Args:
        max_len: longest sequence to serve; by default what the config allows.
        vocab_size: token ids that the tokenizer knows; by default all rows are real.

    Raises:
        ValueError: a field is missing or does not fit another.
    """
    for name, other in (("is_causal", False), ("use_bidirectional_attention", True)):
        if hf_config.get(name) is other:
            raise ValueError(
                f"config.json: {name} {other} is not supported: decoders see only what came before"
            )
    hidden_size, num_heads = (
        required(hf_config, "hidden_size"),
        required(hf_config, "num_attention_heads"),
    )
    head_dim = positive_int(
        hf_config, "head_dim", family.get("head_dim") or hidden_size // num_heads
    )
    num_kv_heads = positive_int(hf_config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads ({num_heads}) must be a multiple of "
            f"num_key_value_heads ({num_kv_heads})"
        )
    num_layers, num_rows = (
        required(hf_config, "num_hidden_layers"),
        required(hf_config, "vocab_size"),
    )
    fields: dict[str, Any] = {
        "num_rows": num_rows,
        "vocab_size": min(vocab_size or num_rows, num_rows),
        "hidden_size": hidden_size,
        "intermediate_size": required(hf_config, "intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "activation": activation(hf_config),
        "rms_norm_eps": positive_number(hf_config, "rms_norm_eps", 1e-6),
        "tie_word_embeddings": bool(hf_config.get("tie_word_embeddings", False)),
        "max_len": max_len or model_max_len(hf_config),
        "windows": (0,) * num_layers,
        "attention_scale": head_dim**-0.5,
    }
    fields |= family
    if "ropes" not in fields:
        fields["ropes"] = (parse_rope(hf_config, fields["head_dim"]),) * num_layers
    _check_rotation(fields["ropes"], fields["head_dim"])
    return DecoderConfig(**fields)


def _check_rotation(ropes: tuple[RopeConfig, ...], head_dim: int) -> None:
    """Kernels rotate pairs within a head and trust the table's width."""
    for rope in set(ropes):
        if rope.rotary_dim % 2 or not 0 < rope.rotary_dim <= head_dim:
            raise ValueError(
                f"config.json: partial_rotary_factor of head_dim ({head_dim}) must be an even "
                f"number of dimensions, at most head_dim, got {rope.rotary_dim}"
            )


def required(hf_config: dict[str, Any], name: str) -> int:
    """A positive integer field.

    Raises:
        ValueError: it is missing or not a positive integer.
    """
    return positive_int(hf_config, name, None)


def activation(hf_config: dict[str, Any]) -> str:
    """The op's name of the MLP activation.

    Raises:
        ValueError: an activation that has no op.
    """
    name = hf_config.get("hidden_activation") or hf_config.get("hidden_act") or "silu"
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"config.json: hidden_act {name!r} is not supported; known: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def sliding_layers(hf_config: dict[str, Any], pattern: tuple[bool, ...]) -> tuple[int, ...]:
    """Window of each layer (0 for full attention): ``layer_types`` if given, else ``pattern``.

    Raises:
        ValueError: another kind of layer, or not one kind for every layer.
    """
    window = 0
    if hf_config.get("sliding_window"):
        window = positive_int(hf_config, "sliding_window", None)
    types = hf_config.get("layer_types")
    if types is not None:
        if not isinstance(types, list | tuple):
            raise ValueError(f"config.json: layer_types must be a list, got {types!r}")
        if unknown := sorted({str(kind) for kind in types} - _LAYER_TYPES):
            raise ValueError(
                f"config.json: layer_types must be of {', '.join(sorted(_LAYER_TYPES))}, got "
                f"{', '.join(unknown)}"
            )
        pattern = tuple(kind == "sliding_attention" for kind in types)
    num_layers = required(hf_config, "num_hidden_layers")
    if len(pattern) != num_layers:
        raise ValueError(
            f"config.json: layer_types must have {num_layers} entries, got {len(pattern)}"
        )
    return tuple(window if sliding else 0 for sliding in pattern)


def text_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config: a multimodal one keeps it in ``text_config``.

    Raises:
        ValueError: a multimodal model whose text part is not read.
    """
    nested = hf_config.get("text_config")
    if not isinstance(nested, dict):
        return hf_config
    if (model_type := hf_config.get("model_type")) not in _MULTIMODAL:
        raise ValueError(
            f"config.json: model_type {model_type!r} has a text_config and is not supported; the "
            f"text part is read of: {', '.join(_MULTIMODAL)}"
        )
    return {name: value for name, value in hf_config.items() if name != "text_config"} | nested


def model_max_len(hf_config: dict[str, Any]) -> int:
    """Longest sequence in tokens that the model allows.

    The model's config decides: ``max_position_embeddings``, times the factor where the rotary
    scaling says so. The tokenizer's ``model_max_length`` is not consulted, and a sliding window
    bounds no sequence.
    """
    hf_config = text_config(hf_config)
    rope = parse_rope(hf_config, head_dim=2, layer_type="full_attention")
    if hf_config.get("model_type") == "gemma3_text":
        return rope.max_position  # counted after scaling
    return longest_position(rope)


def resolve_max_model_len(hf_config: dict[str, Any], requested: int | None) -> int:
    """The context length to serve.

    Raises:
        ValueError: more was asked for than the model allows.
    """
    allowed = model_max_len(hf_config)
    if requested is not None and requested > allowed:
        raise ValueError(
            f"--max-model-len must be at most {allowed}, the model's max_position_embeddings "
            f"(with rope scaling), got {requested}"
        )
    return requested or allowed
