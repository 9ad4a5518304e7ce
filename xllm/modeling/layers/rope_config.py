"""What a model's config says about rotary embedding. No torch: start-up checks read it too."""

from __future__ import annotations

import dataclasses
from typing import Any

from xllm.modeling.layers.fields import positive_int, positive_number


@dataclasses.dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotary embedding. Hashable, so that layers of equal config share a table.

    ``rotary_dim`` leading dimensions of each head rotate. ``original_max_position`` is the context
    the model was pretrained with; ``max_position`` the one its config claims.
    """

    rotary_dim: int
    theta: float
    max_position: int
    rope_type: str = "default"
    factor: float | None = None
    original_max_position: int | None = None
    attention_factor: float | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    short_factor: tuple[float, ...] | None = None  # longrope
    long_factor: tuple[float, ...] | None = None  # longrope
    freq_factors: tuple[float, ...] | None = None  # per-frequency divisors, as GGUF stores them


def parse_rope(
    hf_config: dict[str, Any],
    head_dim: int,
    *,
    layer_type: str | None = None,
    default_theta: float = 10_000.0,
) -> RopeConfig:
    """Read the rotary config of a model, in the old layout (``rope_theta`` and ``rope_scaling``)
    or the new (``rope_parameters``, flat or one dict per layer type). Where both are there, the
    old layout's fields win: people add them to a config that has the new one.

    Args:
        layer_type: which entry to take when there is one per layer type.

    Raises:
        ValueError: a field has the wrong type, or layer types differ where they must not.
    """
    values = _object(hf_config, "rope_parameters")
    if layer_type is not None and isinstance(values.get(layer_type), dict):
        values = values[layer_type]
    elif any(isinstance(value, dict) for value in values.values()) and layer_type is None:
        raise ValueError(
            "config.json: rope_parameters must be the same for all layers of this model_type, got "
            f"some for {', '.join(values)}"
        )
    scaling = _object(hf_config, "rope_scaling")
    kind = str(_rope_type(scaling or values))
    values = values | scaling
    max_position = positive_int(hf_config, "max_position_embeddings", 2048)
    original = positive_int(values, "original_max_position_embeddings", max_position)
    original = positive_int(hf_config, "original_max_position_embeddings", original)
    partial = positive_number(hf_config, "partial_rotary_factor", 1.0)
    partial = positive_number(values, "partial_rotary_factor", partial)
    theta = positive_number(hf_config, "rope_theta", default_theta)
    theta = positive_number(values, "rope_theta", theta)
    options: dict[str, Any] = {
        name: positive_number(values, name, 1.0) for name in _NUMBERS if values.get(name)
    }
    options |= {name: _factors(values, name) for name in _LISTS if values.get(name) is not None}
    if values.get("truncate") is not None:
        options["truncate"] = bool(values["truncate"])
    return RopeConfig(
        rotary_dim=int(head_dim * partial),
        theta=theta,
        max_position=max_position,
        rope_type=_ALIASES.get(kind, kind),
        original_max_position=original,
        **options,
    )


def _object(hf_config: dict[str, Any], name: str) -> dict[str, Any]:
    value = hf_config.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"config.json: {name} must be an object, got {value!r}")
    return value


def _factors(values: dict[str, Any], name: str) -> tuple[float, ...]:
    given = values[name]
    if not isinstance(given, list) or not all(isinstance(v, int | float) and v > 0 for v in given):
        raise ValueError(f"config.json: {name} must be a list of numbers above 0, got {given!r}")
    return tuple(float(value) for value in given)


def longest_position(rope: RopeConfig) -> int:
    """Tokens that the rotary embedding allows: the config's claim, stretched by scaling rules
    whose config counts in pretraining lengths (linear, dynamic, yarn)."""
    if rope.rope_type == "yarn" and rope.original_max_position and rope.factor:
        return int(rope.original_max_position * rope.factor)
    if rope.rope_type in ("linear", "dynamic") and rope.factor:
        return int(rope.max_position * rope.factor)
    return rope.max_position


def _rope_type(values: dict[str, Any]) -> Any:
    return values.get("rope_type") or values.get("type") or "default"


_NUMBERS = (
    "factor",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
_LISTS = ("short_factor", "long_factor", "freq_factors")
_ALIASES = {"su": "longrope"}  # the name that early Phi-3 configs used
