"""Rotary position embedding: scaling rules and the precomputed cos/sin table.

All arithmetic is float32, as in the reference implementations: the table's last bits decide
logits at long positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xllm.modeling.layers.rope_config import RopeConfig


class RotaryTable:
    """``cos_sin`` (max_len, rotary_dim) float32: cosines of all frequencies, then sines.

    ``max_len`` is the longest sequence that will be served. Where a rule has two frequency lists
    (longrope), ``max_len`` chooses, not the sequence at hand: every token of every sequence is
    rotated alike, so cached keys stay valid when a sequence grows past the original context.
    """

    def __init__(self, config: RopeConfig, max_len: int) -> None:
        frequencies, scale = inverse_frequencies(config, max_len)
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).mul_(scale)


def inverse_frequencies(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    """Inverse frequencies (rotary_dim / 2,) float32 and the factor on cosines and sines.

    Raises:
        ValueError: an unknown rope type, or one of its parameters is missing.
    """
    rule = _RULES.get(config.rope_type)
    if rule is None:
        raise ValueError(
            f"rope_type {config.rope_type!r} is not supported; known: {', '.join(sorted(_RULES))}"
        )
    return rule(config, max_len)


def _plain(config: RopeConfig, theta: float | None = None) -> Tensor:
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    return 1.0 / ((theta or config.theta) ** exponents)


def _default(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    return _plain(config), 1.0


def _linear(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    return _plain(config) / _required(config, "factor"), 1.0


def _dynamic(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    """NTK-aware base for the longest sequence served, one base for all (see ``RotaryTable``)."""
    factor, dim = _required(config, "factor"), config.rotary_dim
    length = max(max_len, config.max_position)
    stretch = factor * length / config.max_position - (factor - 1)
    return _plain(config, config.theta * stretch ** (dim / (dim - 2))), 1.0


def _llama3(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    """Long wavelengths divided by ``factor``, short ones kept, a linear blend between."""
    factor = _required(config, "factor")
    original = _required(config, "original_max_position")
    frequencies = _plain(config)
    wavelengths = 2 * math.pi / frequencies
    low, high = config.low_freq_factor, config.high_freq_factor
    blend = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies, 1.0


def _yarn(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    original, dim = _required(config, "original_max_position"), config.rotary_dim
    factor = config.factor or config.max_position / original

    def correction_dim(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = correction_dim(config.beta_fast), correction_dim(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    frequencies = _plain(config)
    scaled = frequencies / factor * ramp + frequencies * (1 - ramp)
    return scaled, _yarn_attention_factor(config, factor)


def _yarn_attention_factor(config: RopeConfig, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return mscale(config.mscale) / mscale(config.mscale_all_dim)
    return mscale(1.0)


def _longrope(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    original = config.original_max_position or config.max_position
    name = "long_factor" if max_len > original else "short_factor"
    factors = torch.tensor(_required(config, name), dtype=torch.float32)
    if factors.shape[0] != config.rotary_dim // 2:
        raise ValueError(
            f"rope_scaling.{name} must have {config.rotary_dim // 2} entries, "
            f"got {factors.shape[0]}"
        )
    scale = config.attention_factor
    if scale is None:
        ratio = config.factor or config.max_position / original
        scale = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    return 1.0 / (factors * config.theta**exponents), scale


def _freq_factors(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    return _plain(config) / torch.tensor(_required(config, "freq_factors")), 1.0


def _required(config: RopeConfig, name: str) -> Any:
    value = getattr(config, name)
    if value is None:
        raise ValueError(f"rope_scaling of type {config.rope_type} needs {name}")
    return value


_RULES: dict[str, Callable[[RopeConfig, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "freq_factors": _freq_factors,
}
