"""Per-head norm, rotary embedding (Su et al., 2021, in NeoX order) and the KV cache write."""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels.reference.rms_norm import rms_norm


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
) -> Tensor:
    """See ``ops.qk_norm_rope_kv_write``."""
    sizes = [num_q_heads, num_kv_heads, num_kv_heads]
    q, k, v = qkv.view(qkv.shape[0], sum(sizes), head_dim).split(sizes, dim=1)
    if q_weight is not None:
        q = rms_norm(q, q_weight, eps, offset)
    if k_weight is not None:
        k = rms_norm(k, k_weight, eps, offset)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    kept = slot_mapping >= 0
    block, inside = slot_mapping[kept] // k_cache.shape[1], slot_mapping[kept] % k_cache.shape[1]
    k_cache[block, inside] = k[kept].to(k_cache.dtype)
    v_cache[block, inside] = v[kept].to(v_cache.dtype)
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first ``2 * cos.shape[-1]`` dimensions of x (T, heads, D) in float32."""
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), dim=-1)
