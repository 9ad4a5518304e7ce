"""Per-head norm, rotation and KV write on the CPU."""

from __future__ import annotations

import struct

from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import DTYPES, entry, pointer

_rope = entry("xllm_qk_norm_rope_kv_write")
# nine pointers, six sizes, eight strides, eps, offset, dtype
_pack = struct.Struct("=23q2dq").pack


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
    dtype = DTYPES.get(qkv.dtype)
    scaled = (k_scale, v_scale) != (1.0, 1.0)
    if dtype is None or k_cache.dtype != qkv.dtype or scaled:
        return reference.qk_norm_rope_kv_write(
            qkv,
            positions,
            cos_sin,
            k_cache,
            v_cache,
            slot_mapping,
            num_q_heads,
            num_kv_heads,
            head_dim,
            q_weight,
            k_weight,
            eps,
            offset,
            k_scale,
            v_scale,
        )
    tokens = qkv.shape[0]
    q = qkv.new_empty((tokens, num_q_heads, head_dim))
    _rope(
        _pack(
            *(qkv.data_ptr(), positions.data_ptr(), cos_sin.data_ptr()),
            *(k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr()),
            *(pointer(q_weight), pointer(k_weight), q.data_ptr()),
            *(tokens, num_q_heads, num_kv_heads, head_dim, cos_sin.shape[1], k_cache.shape[1]),
            *k_cache.stride(),
            *v_cache.stride(),
            *(eps, offset, dtype),
        )
    )
    return q
