"""Query/key normalization, rotary embedding and the KV cache write, in one launch.

Grid: (token, part). A part is a run of query heads, all key heads or all value heads of a token.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    allow_consumers_of_few,
    pdl_options,
    wait_for_producers,
)

_QUERY_HEADS_PER_PROGRAM = 8


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
    """See ``ops.qk_norm_rope_kv_write``. Caches are (blocks, block_size, Hk, D), any strides."""
    tokens = qkv.shape[0]
    q = qkv.new_empty((tokens, num_q_heads, head_dim))
    if not tokens:
        return q
    assert qkv.stride(1) == k_cache.stride(3) == v_cache.stride(3) == 1
    rotary = cos_sin.shape[1]
    query_parts = triton.cdiv(num_q_heads, _QUERY_HEADS_PER_PROGRAM)
    rest = head_dim - rotary
    _kernel[(tokens, query_parts + 2)](
        qkv,
        positions,
        cos_sin,
        slot_mapping,
        q_weight,
        k_weight,
        q,
        k_cache,
        v_cache,
        qkv.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        v_cache.stride(0),
        v_cache.stride(1),
        v_cache.stride(2),
        eps,
        offset,
        k_scale,
        v_scale,
        HQ=num_q_heads,
        HK=num_kv_heads,
        D=head_dim,
        HALF=rotary // 2,
        REST=rest,
        BLOCK_SIZE=k_cache.shape[1],
        QUERY_PARTS=query_parts,
        HEADS_Q=min(_QUERY_HEADS_PER_PROGRAM, triton.next_power_of_2(num_q_heads)),
        HEADS_K=triton.next_power_of_2(num_kv_heads),
        HALF_BLOCK=triton.next_power_of_2(rotary // 2),
        REST_BLOCK=triton.next_power_of_2(max(rest, 1)),
        D_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=4,
        **pdl_options(qkv.device),
    )
    return q


@triton.jit
def _rotate_heads(
    source,  # first head of this token's q or k
    destination,
    source_stride,
    destination_stride,
    weight_ptr,
    cos_sin_row,
    heads,
    inside_heads,
    eps,
    offset,
    factor,
    D: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
):
    """Normalise and rotate ``heads`` of one token and store them, times ``factor``."""
    half = tl.arange(0, HALF_BLOCK)
    inside_half = half < HALF
    mask = inside_heads[:, None] & inside_half[None, :]
    at = heads[:, None] * source_stride + half[None, :]
    first = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + at + HALF, mask=mask, other=0.0).to(tl.float32)
    rest = tl.arange(0, REST_BLOCK)
    rest_mask = inside_heads[:, None] & (rest < REST)[None, :]
    if REST > 0:
        rest_at = heads[:, None] * source_stride + 2 * HALF + rest[None, :]
        tail = tl.load(source + rest_at, mask=rest_mask, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        squares = tl.sum(first * first + second * second, axis=1)
        if REST > 0:
            squares += tl.sum(tail * tail, axis=1)
        scale = (1.0 / tl.sqrt(squares / D + eps))[:, None]
        w1 = tl.load(weight_ptr + half, mask=inside_half, other=0.0).to(tl.float32) + offset
        w2 = tl.load(weight_ptr + HALF + half, mask=inside_half, other=0.0).to(tl.float32) + offset
        # Rounded as a norm of its own would round: the rotation sees the model's dtype.
        first = (first * scale * w1[None, :]).to(source.dtype.element_ty).to(tl.float32)
        second = (second * scale * w2[None, :]).to(source.dtype.element_ty).to(tl.float32)
        if REST > 0:
            w3 = tl.load(weight_ptr + 2 * HALF + rest, mask=rest < REST, other=0.0).to(tl.float32)
            tail = tail * scale * (w3 + offset)[None, :]
    cos = tl.load(cos_sin_row + half, mask=inside_half, other=0.0)[None, :] * factor
    sin = tl.load(cos_sin_row + HALF + half, mask=inside_half, other=0.0)[None, :] * factor
    dtype = destination.dtype.element_ty
    to = heads[:, None] * destination_stride + half[None, :]
    tl.store(destination + to, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(destination + to + HALF, (second * cos + first * sin).to(dtype), mask=mask)
    if REST > 0:
        rest_to = heads[:, None] * destination_stride + 2 * HALF + rest[None, :]
        tl.store(destination + rest_to, (tail * factor).to(dtype), mask=rest_mask)


@triton.jit
def _kernel(
    qkv_ptr,  # (T, (HQ + 2 HK) * D)
    positions_ptr,  # (T,) int64
    cos_sin_ptr,  # (max_pos, 2 * HALF) float32: cosines, then sines
    slots_ptr,  # (T,) int64
    q_weight_ptr,  # (D,) or None
    k_weight_ptr,  # (D,) or None
    q_ptr,  # (T, HQ, D)
    k_cache_ptr,
    v_cache_ptr,
    qkv_stride,
    k_stride_block,
    k_stride_token,
    k_stride_head,
    v_stride_block,
    v_stride_token,
    v_stride_head,
    eps,
    offset,
    k_scale,
    v_scale,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_PARTS: tl.constexpr,
    HEADS_Q: tl.constexpr,
    HEADS_K: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    allow_consumers_of_few(tl.num_programs(0), PDL)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    source = qkv_ptr + token * qkv_stride
    cos_sin_row = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF)
    if part < QUERY_PARTS:
        heads = part * HEADS_Q + tl.arange(0, HEADS_Q)
        _rotate_heads(
            source,
            q_ptr + token * (HQ * D),
            D,
            D,
            q_weight_ptr,
            cos_sin_row,
            heads,
            heads < HQ,
            eps,
            offset,
            k_scale,
            D,
            HALF,
            REST,
            HALF_BLOCK,
            REST_BLOCK,
        )
    else:
        slot = tl.load(slots_ptr + token)
        block = slot // BLOCK_SIZE
        within = slot % BLOCK_SIZE
        kv_heads = tl.arange(0, HEADS_K)
        inside_kv = kv_heads < tl.where(slot >= 0, HK, 0)
        if part == QUERY_PARTS:
            _rotate_heads(
                source + HQ * D,
                k_cache_ptr + block * k_stride_block + within * k_stride_token,
                D,
                k_stride_head,
                k_weight_ptr,
                cos_sin_row,
                kv_heads,
                inside_kv,
                eps,
                offset,
                1.0 / k_scale,
                D,
                HALF,
                REST,
                HALF_BLOCK,
                REST_BLOCK,
            )
        else:
            columns = tl.arange(0, D_BLOCK)
            mask = inside_kv[:, None] & (columns < D)[None, :]
            at = (HQ + HK) * D + kv_heads[:, None] * D + columns[None, :]
            value = tl.load(source + at, mask=mask, other=0.0).to(tl.float32) * (1.0 / v_scale)
            to = v_cache_ptr + block * v_stride_block + within * v_stride_token
            to += kv_heads[:, None] * v_stride_head + columns[None, :]
            tl.store(to, value.to(v_cache_ptr.dtype.element_ty), mask=mask)
