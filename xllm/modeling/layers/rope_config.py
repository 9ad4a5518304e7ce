"""What a model's config says about rotary embedding. No torch: start-up checks read it too."""

from __future__ import annotations

import dataclasses
from typing import Any


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
    or the new (``rope_parameters``, flat or one dict per layer type).

    Args:
        layer_type: which entry to take when there is one per layer type.

    Raises:
        ValueError: a field has the wrong type.
    """
    values = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    if not isinstance(values, dict):
        raise ValueError(f"rope_scaling must be an object, got {values!r}")
    if layer_type is not None and isinstance(values.get(layer_type), dict):
        values = values[layer_type]
    max_position = int(hf_config.get("max_position_embeddings") or 2048)
    partial = values.get("partial_rotary_factor") or hf_config.get("partial_rotary_factor") or 1.0
    original = hf_config.get("original_max_position_embeddings")
    original = original or values.get("original_max_position_embeddings") or max_position
    options = {name: values[name] for name in _PASSED if values.get(name) is not None}
    options |= {name: tuple(values[name]) for name in _LISTS if values.get(name) is not None}
    theta = values.get("rope_theta") or hf_config.get("rope_theta") or default_theta
    return RopeConfig(
        rotary_dim=int(head_dim * partial),
        theta=float(theta),
        max_position=max_position,
        rope_type=_ALIASES.get(kind := str(_rope_type(values)), kind),
        original_max_position=int(original),
        **options,
    )


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


_PASSED = (
    "factor",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
)
_LISTS = ("short_factor", "long_factor", "freq_factors")
_ALIASES = {"su": "longrope"}  # the name that early Phi-3 configs used
