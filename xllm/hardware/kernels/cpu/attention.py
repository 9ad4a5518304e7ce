"""Paged attention on the CPU."""

from __future__ import annotations

import struct

from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import DTYPES, entry, pointer

_paged_attention = entry("xllm_paged_attention")
# seven pointers, six sizes, six strides, scale, softcap, window, dtype, sinks
_pack = struct.Struct("=19q2d3q").pack
_LANES, _MAX_HEAD_DIM = 16, 1024


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    max_query_len: int = 1,
    sinks: Tensor | None = None,
) -> Tensor:
    """See ``ops.paged_attention``."""
    dtype = DTYPES.get(q.dtype)
    tokens, heads, head_dim = q.shape
    if dtype is None or head_dim % _LANES or head_dim > _MAX_HEAD_DIM or k_cache.dtype != q.dtype:
        return reference.paged_attention(
            q,
            k_cache,
            v_cache,
            query_start_loc,
            seq_lens,
            block_table,
            scale,
            softcap,
            window,
            max_query_len,
            sinks,
        )
    k_stride, v_stride = k_cache.stride(), v_cache.stride()
    assert k_stride[3] == v_stride[3] == 1
    out = q.new_empty((tokens, heads * head_dim))
    _paged_attention(
        _pack(
            *(q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), query_start_loc.data_ptr()),
            *(seq_lens.data_ptr(), block_table.data_ptr(), out.data_ptr(), seq_lens.shape[0]),
            *(block_table.stride(0), heads, k_cache.shape[2], head_dim, k_cache.shape[1]),
            *(*k_stride[:3], *v_stride[:3], scale, softcap, window, dtype),
            pointer(sinks),
        )
    )
    return out
