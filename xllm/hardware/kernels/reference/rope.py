"""Per-head norm of queries and keys, rotary embedding, and the write into the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels.reference.norm import rms_norm


def qk_norm_rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    offset: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """See ``ops.qk_norm_rope_kv_write``."""
    heads = qkv.unflatten(-1, (num_q_heads + 2 * num_kv_heads, head_dim))
    q, k, v = heads.split((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    if q_weight is not None:
        q = rms_norm(q, q_weight, eps, offset)
    if k_weight is not None:
        k = rms_norm(k, k_weight, eps, offset)
    rows = cos_sin[positions]
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block_size = k_cache.shape[1]
    blocks, places = slots // block_size, slots % block_size
    _write(k_cache, blocks, places, _rotate(k, rows, 1 / k_scale)[written])
    _write(v_cache, blocks, places, v[written] / v_scale)
    return _rotate(q, rows, k_scale)


def _write(cache: Tensor, blocks: Tensor, places: Tensor, tokens: Tensor) -> None:
    """Tokens (n, Hk, D) into the cache; 8-bit floats saturate."""
    if cache.dtype == torch.float8_e4m3fn:
        largest = torch.finfo(cache.dtype).max
        tokens = tokens.float().clamp(-largest, largest)
    cache[blocks, places] = tokens.to(cache.dtype)


def _rotate(x: Tensor, cos_sin_rows: Tensor, factor: float) -> Tensor:
    """Rotate the first ``rot`` dims of ``x`` (T, heads, D) as pairs ``(i, i + rot / 2)``; times
    ``factor``."""
    rotary = cos_sin_rows.shape[1]
    cos, sin = cos_sin_rows[:, None].chunk(2, dim=-1)
    first, second = x[..., :rotary].float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return (torch.cat((turned, x[..., rotary:].float()), dim=-1) * factor).to(x.dtype)
