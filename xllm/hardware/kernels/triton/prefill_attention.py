"""Paged causal attention for rows with several query tokens (chunks, whole prompts, drafts).

Grid: (query tile, KV head). A tile holds the query heads of one KV head for a run of tokens of one
row, so that keys are read once per group. Tiles are found on the device by binary search in
``query_start_loc``; the grid is an upper bound from shapes alone, so the kernel is graph-safe.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    attention_operand,
    pdl_options,
    upcast_attention,
    wait_for_producers,
)

_LOG2E = 1.4426950408889634


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    softcap: float,
    window: int,
    out: Tensor,
    *,
    sinks: Tensor | None = None,
    block_m: int = 64,
    block_n: int = 64,
    num_warps: int = 4,
    num_stages: int = 3,
) -> None:
    """Fill ``out`` (T, Hq, D) for every row that has two or more query tokens.

    Shapes as in ``ops.paged_attention``; the last keyword arguments are tuning choices.
    """
    tokens, heads, head_dim = q.shape
    rows = seq_lens.shape[0]
    kv_heads = k_cache.shape[2]
    group = heads // kv_heads
    group_block = triton.next_power_of_2(group)
    d_block = triton.next_power_of_2(head_dim)
    if q.dtype == torch.float32:
        block_m, block_n, num_stages = 32, 16, 2
    elif d_block > 128:
        block_m, block_n, num_stages = min(block_m, 64), min(block_n, 32), 2
    block_m = max(block_m, group_block)
    block_q = block_m // group_block
    _prefill_attention_kernel[(tokens // block_q + rows, kv_heads)](
        q,
        k_cache,
        v_cache,
        query_start_loc,
        seq_lens,
        block_table,
        out,
        sinks,
        rows,
        scale * _LOG2E,
        softcap * _LOG2E if softcap else 1.0,
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        HQ=heads,
        D=head_dim,
        GROUP=group,
        GROUP_BLOCK=group_block,
        D_BLOCK=d_block,
        BLOCK_Q=block_q,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_SIZE=k_cache.shape[1],
        WINDOW=window,
        SOFTCAP=softcap > 0,
        UPCAST=upcast_attention(q, k_cache),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=num_warps,
        num_stages=num_stages,
        **pdl_options(q.device),
    )


@triton.jit
def _row_of_tile(query_start_ptr, tile, num_rows, BLOCK_Q: tl.constexpr):
    """The last row whose first tile, ``query_start[row] // BLOCK_Q + row``, is not after ``tile``.

    Rows' tiles never overlap: a row of n tokens needs at most n // BLOCK_Q + 1 of them.
    """
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def add_sinks(mass, peak, sinks_ptr, mask):
    """The sums of weights, relative to ``exp2(peak)``, with each row's sink in them.

    A sink far above every score makes the sum infinite: no weight is left.
    """
    sinks = tl.load(sinks_ptr, mask=mask, other=-float("inf")) * 1.4426950408889634  # log2(e)
    return mass + tl.exp2(sinks - peak)


@triton.jit
def blocks_of_tile(table, tile, last_block, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """(BLOCK_N,) cache block of every key of a tile; past the row's last block, that one.

    Loops load these one tile ahead, as values that do not hang on a vector load: only then are the
    loads of keys and values pipelined, and not those of the table before them.
    """
    lane = tl.arange(0, BLOCK_N)
    if BLOCK_SIZE % BLOCK_N == 0:
        block = tl.load(table + tl.minimum(tile // (BLOCK_SIZE // BLOCK_N), last_block)) + lane * 0
    elif BLOCK_N % BLOCK_SIZE == 0 and BLOCK_N // BLOCK_SIZE <= 8:
        BLOCKS: tl.constexpr = BLOCK_N // BLOCK_SIZE
        block = tl.load(table + tl.minimum(tile * BLOCKS, last_block)) + lane * 0
        for i in tl.static_range(1, BLOCKS):
            other = tl.load(table + tl.minimum(tile * BLOCKS + i, last_block))
            block = tl.where(lane >= i * BLOCK_SIZE, other, block)
    else:
        keys = tile * BLOCK_N + lane
        block = tl.load(table + tl.minimum(keys // BLOCK_SIZE, last_block))
    return block


@triton.jit
def attend_tile(
    q,
    acc,
    mass,
    peak,
    block,
    tile,
    positions,
    first_position,
    seq_len,
    cache,
    scale,
    softcap,
    columns,
    in_head,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold one tile of keys, in the blocks ``block``, into the running softmax of ``q``."""
    k_head, v_head, k_stride_block, k_stride_token, v_stride_block, v_stride_token = cache
    keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    within = keys % BLOCK_SIZE
    if MASKED:
        # Nothing outside may reach a product: blocks left of the window are stale.
        exists = keys < seq_len
        if WINDOW > 0:
            exists &= keys > first_position - WINDOW
        k_mask = exists[None, :] & in_head[:, None]
        v_mask = exists[:, None] & in_head[None, :]
    else:
        k_mask = in_head[:, None]
        v_mask = in_head[None, :]
    block = block.to(tl.int64)
    k_at = (block * k_stride_block + within * k_stride_token)[None, :] + columns[:, None]
    v_at = (block * v_stride_block + within * v_stride_token)[:, None] + columns[None, :]
    k = tl.load(k_head + k_at, mask=k_mask, other=0.0)
    v = tl.load(v_head + v_at, mask=v_mask, other=0.0)
    k = attention_operand(k, k_head, UPCAST)
    v = attention_operand(v, v_head, UPCAST)
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:  # cap * tanh(s / cap), both already times log2(e)
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    if MASKED:
        visible = keys[None, :] <= positions[:, None]
        if WINDOW > 0:
            visible &= keys[None, :] > positions[:, None] - WINDOW
        # Finite, so that a query without a visible key in this tile stays a number.
        scores = tl.where(visible, scores, -1.0e30)
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    decay = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    mass = mass * decay + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return acc, mass, new_peak


@triton.jit(do_not_specialize=["num_rows"])
def _prefill_attention_kernel(
    q_ptr,  # (T, HQ, D)
    k_ptr,  # (blocks, BLOCK_SIZE, HK, D), strided
    v_ptr,
    query_start_ptr,  # (S + 1,) int32
    seq_lens_ptr,  # (S,) int32
    block_table_ptr,  # (S, B) int32
    out_ptr,  # (T, HQ, D) contiguous
    sinks_ptr,  # (HQ,) float32, or None
    num_rows,
    scale,  # times log2(e)
    softcap,  # times log2(e)
    q_stride_token,
    q_stride_head,
    k_stride_block,
    k_stride_token,
    k_stride_head,
    v_stride_block,
    v_stride_token,
    v_stride_head,
    table_stride,
    HQ: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    # Late tiles of a prompt attend to most keys: start them first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    row = _row_of_tile(query_start_ptr, tile, num_rows, BLOCK_Q)
    token = tl.load(query_start_ptr + row)
    query_len = tl.load(query_start_ptr + row + 1) - token
    first_query = (tile - (token // BLOCK_Q + row)) * BLOCK_Q
    if (query_len < 2) | (first_query >= query_len):
        return
    seq_len = tl.load(seq_lens_ptr + row)

    member = tl.arange(0, BLOCK_M)
    queries = first_query + member // GROUP_BLOCK
    group = member % GROUP_BLOCK
    columns = tl.arange(0, D_BLOCK)
    in_head = columns < D
    valid = (queries < query_len) & (group < GROUP)
    mask = valid[:, None] & in_head[None, :]
    tokens = (token + queries).to(tl.int64)
    heads = kv_head * GROUP + group
    q = tl.load(
        q_ptr + (tokens * q_stride_token + heads * q_stride_head)[:, None] + columns[None, :],
        mask=mask,
        other=0.0,
    )
    q = attention_operand(q, k_ptr, UPCAST)
    positions = seq_len - query_len + queries
    first_position = seq_len - query_len + first_query
    last_position = tl.minimum(first_position + BLOCK_Q, seq_len) - 1

    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_BLOCK], tl.float32)
    table = block_table_ptr + row.to(tl.int64) * table_stride
    k_head = k_ptr + kv_head * k_stride_head
    v_head = v_ptr + kv_head * v_stride_head
    cache = (k_head, v_head, k_stride_block, k_stride_token, v_stride_block, v_stride_token)
    end = last_position // BLOCK_N + 1
    begin = 0
    # Tiles in [begin, full_begin) cut the window, those in [full_end, end) the diagonal.
    full_begin = 0
    full_end = (first_position + 1) // BLOCK_N
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N
    last_block = last_position // BLOCK_SIZE
    next_block = blocks_of_tile(table, begin, last_block, BLOCK_N, BLOCK_SIZE)
    if WINDOW > 0:
        full_begin = tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), BLOCK_N)
        full_begin = tl.minimum(full_begin, end)
        full_end = tl.maximum(full_end, full_begin)
        for t in range(begin, full_begin):
            block = next_block
            next_block = blocks_of_tile(table, t + 1, last_block, BLOCK_N, BLOCK_SIZE)
            acc, mass, peak = attend_tile(
                q, acc, mass, peak, block, t, positions, first_position, seq_len, cache, scale,
                softcap, columns, in_head, BLOCK_N, BLOCK_SIZE, WINDOW, SOFTCAP, True, UPCAST,
                PRECISION,
            )  # fmt: skip
    for t in range(full_begin, full_end):
        block = next_block
        next_block = blocks_of_tile(table, t + 1, last_block, BLOCK_N, BLOCK_SIZE)
        acc, mass, peak = attend_tile(
            q, acc, mass, peak, block, t, positions, first_position, seq_len, cache, scale,
            softcap, columns, in_head, BLOCK_N, BLOCK_SIZE, WINDOW, SOFTCAP, False, UPCAST,
            PRECISION,
        )  # fmt: skip
    for t in range(full_end, end):
        block = next_block
        next_block = blocks_of_tile(table, t + 1, last_block, BLOCK_N, BLOCK_SIZE)
        acc, mass, peak = attend_tile(
            q, acc, mass, peak, block, t, positions, first_position, seq_len, cache, scale,
            softcap, columns, in_head, BLOCK_N, BLOCK_SIZE, WINDOW, SOFTCAP, True, UPCAST,
            PRECISION,
        )  # fmt: skip
    if sinks_ptr is not None:
        mass = add_sinks(mass, peak, sinks_ptr + heads, group < GROUP)
    y = acc / mass[:, None]
    to = out_ptr + (tokens * HQ + heads)[:, None] * D + columns[None, :]
    tl.store(to, y.to(out_ptr.dtype.element_ty), mask=mask)
