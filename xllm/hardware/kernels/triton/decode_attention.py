"""Split-KV paged attention for rows with one query token.

Grid: (split, KV head, row). A program attends all query heads of one KV head to its share of the
row's keys. The last program of a (row, head) to arrive merges the shares, so there is no second
launch. The grid depends on shapes alone: the kernel is plan-free and graph-safe, rows of any
length (also none) may stand anywhere, and rows with other query lengths are left alone.

A sink joins a head's softmax once, where its output is divided.

Where rows share leading blocks, ``shared_prefix`` has put its shares of those keys first: a row
then begins after its prefix and merges all shares.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.shared_prefix import SharedPrefix
from xllm.hardware.kernels.triton.launch import (
    MAX_COUNTERS,
    allow_consumers,
    allow_consumers_of_few,
    arrival_counters,
    attention_operand,
    num_multiprocessors,
    pdl_options,
    upcast_attention,
    value_operand,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.prefill_attention import add_sinks
from xllm.hardware.kernels.triton.shared_prefix import (
    attend_shared_prefix,
    choose_prefix_shares,
)

_LOG2E = 1.4426950408889634
_PROGRAMS_PER_SM = 8
MAX_SPLITS = 16
_MERGE_BLOCK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class SplitPlan:
    """How a (row, head)'s keys are shared out: at most ``splits`` shares, none of them tiny."""

    splits: int  # a power of two
    min_tiles: int  # least key tiles per share


def choose_splits(num_rows: int, num_kv_heads: int, num_sms: int) -> SplitPlan:
    """Fill the device a few times when rows are few; break up only long rows when they are many.

    Measured on an H200: a merge costs about 3 µs, which a share of 512 keys hides.
    """
    programs = num_rows * num_kv_heads
    wanted = max(_PROGRAMS_PER_SM * num_sms // programs, 2)
    min_tiles = 1 if programs < 32 else 2 if programs < 256 else 4
    return SplitPlan(min(1 << (wanted.bit_length() - 1), MAX_SPLITS), min_tiles)


def decode_attention(
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
    prefix: SharedPrefix | None = None,
    plan: SplitPlan | None = None,
    block_n: int = 128,
    num_warps: int = 4,
    num_stages: int = 3,
) -> None:
    """Fill ``out`` (T, Hq, D) for every row that has exactly one query token.

    Shapes as in ``ops.paged_attention``; the last keyword arguments are tuning choices.

    Args:
        prefix: rows whose first tokens are the same blocks, to be read once for all of them.
    """
    rows = seq_lens.shape[0]
    _, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    if plan is None:
        plan = choose_splits(rows, kv_heads, num_multiprocessors(q.device))
    assert plan.splits <= MAX_SPLITS
    splits = plan.splits
    if rows * kv_heads > MAX_COUNTERS:
        splits, prefix = 1, None
    if q.dtype == torch.float32:
        block_n, num_stages = 16, 2
    elif head_dim > 128:
        block_n = min(block_n, 64)
    group = heads // kv_heads
    d_block = triton.next_power_of_2(head_dim)
    prefix_shares = 0
    if prefix is not None:
        prefix_shares = choose_prefix_shares(rows, kv_heads, num_multiprocessors(q.device))
    partial = stats = out
    if splits + prefix_shares > 1:
        shape = (rows, heads, prefix_shares + splits)
        partial = torch.empty((*shape, d_block), dtype=torch.float32, device=q.device)
        stats = torch.empty((*shape, 2), dtype=torch.float32, device=q.device)
    if prefix is not None:
        attend_shared_prefix(
            q, k_cache, v_cache, block_table, prefix, scale, softcap, partial, stats, prefix_shares
        )
    _decode_attention_kernel[(splits, kv_heads, rows)](
        q,
        k_cache,
        v_cache,
        query_start_loc,
        seq_lens,
        block_table,
        out,
        partial,
        stats,
        arrival_counters(q.device),
        prefix.lens if prefix is not None else None,
        sinks,
        scale * _LOG2E,
        softcap * _LOG2E if softcap else 1.0,
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        splits,
        plan.min_tiles,
        HQ=heads,
        HK=kv_heads,
        D=head_dim,
        GROUP=group,
        GROUP_BLOCK=max(16, triton.next_power_of_2(group)),
        D_BLOCK=d_block,
        BLOCK_N=block_n,
        BLOCK_SIZE=k_cache.shape[1],
        PREFIX_SHARES=prefix_shares,
        MAX_SHARES=MAX_SPLITS if prefix is None else 2 * MAX_SPLITS,
        MERGE_BLOCK=_MERGE_BLOCK,
        MERGE_GROUP=triton.next_power_of_2(group),
        WINDOW=window,
        SOFTCAP=softcap > 0,
        UPCAST=upcast_attention(q, k_cache),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=num_warps,
        num_stages=num_stages,
        **pdl_options(q.device),
    )


@triton.jit
def _merge_shares(
    partial_ptr,
    stats_ptr,
    sinks_ptr,
    out_ptr,
    first_head,
    used,
    slots,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    MAX_SHARES: tl.constexpr,
    MERGE_BLOCK: tl.constexpr,
    MERGE_GROUP: tl.constexpr,
):
    """Write the outputs of a group of heads from their ``used`` shares, in a fixed order.

    ``first_head`` indexes the group's first head in ``partial`` and ``stats``, which have ``slots``
    shares per head; ``sinks_ptr`` (or None) and ``out_ptr`` point at that head's sink and output.
    """
    group = tl.arange(0, MERGE_GROUP)
    columns = tl.arange(0, D_BLOCK)
    every = tl.arange(0, MAX_SHARES)
    in_group = group < GROUP
    each = (first_head + group)[:, None] * slots + every[None, :]
    used_shares = in_group[:, None] & (every < used)[None, :]
    peaks = tl.load(stats_ptr + each * 2, mask=used_shares, other=-1.0e30, cache_modifier=".cg")
    masses = tl.load(stats_ptr + each * 2 + 1, mask=used_shares, other=0.0, cache_modifier=".cg")
    peak = tl.max(peaks, axis=1)
    mass = tl.sum(masses * tl.exp2(peaks - peak[:, None]), axis=1)
    if sinks_ptr is not None:
        mass = add_sinks(mass, peak, sinks_ptr + group, in_group)
    acc = tl.zeros([MERGE_GROUP, D_BLOCK], tl.float32)
    for start in range(0, used, MERGE_BLOCK):
        shares = start + tl.arange(0, MERGE_BLOCK)
        rows = (first_head + group)[:, None] * slots + shares[None, :]
        mask = in_group[:, None] & (shares < used)[None, :]
        share_peaks = tl.load(stats_ptr + rows * 2, mask=mask, other=-1.0e30, cache_modifier=".cg")
        tile = tl.load(
            partial_ptr + rows[:, :, None] * D_BLOCK + columns[None, None, :],
            mask=mask[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        acc += tl.sum(tile * tl.exp2(share_peaks - peak[:, None])[:, :, None], axis=1)
    y = acc / mass[:, None]
    tl.store(
        out_ptr + group[:, None] * D + columns[None, :],
        y.to(out_ptr.dtype.element_ty),
        mask=in_group[:, None] & (columns < D)[None, :],
    )


# One compilation for all batch sizes: they differ in splits and min_tiles alone.
@triton.jit(do_not_specialize=["splits", "min_tiles"])
def _decode_attention_kernel(
    q_ptr,  # (T, HQ, D)
    k_ptr,  # (blocks, BLOCK_SIZE, HK, D), strided
    v_ptr,
    query_start_ptr,  # (S + 1,) int32
    seq_lens_ptr,  # (S,) int32
    block_table_ptr,  # (S, B) int32
    out_ptr,  # (T, HQ, D) contiguous
    partial_ptr,  # (S, HQ, PREFIX_SHARES + splits, D_BLOCK) float32, unnormalised
    stats_ptr,  # (S, HQ, PREFIX_SHARES + splits, 2) float32: peak, mass
    counters_ptr,  # (S * HK,) int32, zero on entry and exit
    prefix_lens_ptr,  # (S,) int32, or None
    sinks_ptr,  # (HQ,) float32, or None
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
    splits,
    min_tiles,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PREFIX_SHARES: tl.constexpr,
    MAX_SHARES: tl.constexpr,
    MERGE_BLOCK: tl.constexpr,
    MERGE_GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.program_id(2)
    allow_consumers_of_few(tl.num_programs(2), PDL)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    token = tl.load(query_start_ptr + row).to(tl.int64)
    query_len = tl.load(query_start_ptr + row + 1) - token
    seq_len = tl.load(seq_lens_ptr + row)
    if (query_len != 1) | (seq_len <= 0):
        return
    first_tile = 0
    prefix_shares = 0
    if PREFIX_SHARES > 0:
        first_tile = tl.load(prefix_lens_ptr + row) // BLOCK_N
        prefix_shares = tl.where(first_tile > 0, PREFIX_SHARES, 0)
    if WINDOW > 0:
        first_tile = tl.maximum(seq_len - WINDOW, 0) // BLOCK_N
    num_tiles = tl.cdiv(seq_len, BLOCK_N) - first_tile
    tiles_per_split = tl.maximum(tl.cdiv(num_tiles, splits), min_tiles)
    used = tl.cdiv(num_tiles, tiles_per_split)
    begin = first_tile + split * tiles_per_split
    end = tl.minimum(begin + tiles_per_split, first_tile + num_tiles)
    if begin >= end:
        return

    group = tl.arange(0, GROUP_BLOCK)
    columns = tl.arange(0, D_BLOCK)
    in_group = group < GROUP
    in_head = columns < D
    heads = kv_head * GROUP + group
    q = tl.load(
        q_ptr + token * q_stride_token + heads[:, None] * q_stride_head + columns[None, :],
        mask=in_group[:, None] & in_head[None, :],
        other=0.0,
    )
    q = attention_operand(q, k_ptr, UPCAST)
    peak = tl.full([GROUP_BLOCK], -float("inf"), tl.float32)
    mass = tl.zeros([GROUP_BLOCK], tl.float32)
    acc = tl.zeros([GROUP_BLOCK, D_BLOCK], tl.float32)
    table = block_table_ptr + row.to(tl.int64) * table_stride
    k_head = k_ptr + kv_head * k_stride_head
    v_head = v_ptr + kv_head * v_stride_head
    for tile in range(begin, end):
        keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        visible = keys < seq_len
        if WINDOW > 0:
            visible &= keys >= seq_len - WINDOW
        block = tl.load(table + keys // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
        within = keys % BLOCK_SIZE
        k = tl.load(
            k_head + (block * k_stride_block + within * k_stride_token)[None, :] + columns[:, None],
            mask=in_head[:, None],
            other=0.0,
        )
        v = tl.load(
            v_head + (block * v_stride_block + within * v_stride_token)[:, None] + columns[None, :],
            mask=visible[:, None] & in_head[None, :],
            other=0.0,
        )
        k = attention_operand(k, k_ptr, UPCAST)
        v = value_operand(v, v_ptr, UPCAST)
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if SOFTCAP:  # cap * tanh(s / cap), both already times log2(e)
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        scores = tl.where(visible[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        decay = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        mass = mass * decay + tl.sum(weights, axis=1)
        acc = acc * decay[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = new_peak

    if (used == 1) & (prefix_shares == 0):
        if sinks_ptr is not None:
            mass = add_sinks(mass, peak, sinks_ptr + heads, in_group)
        to = out_ptr + token * (HQ * D) + heads[:, None] * D + columns[None, :]
        y = (acc / mass[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(to, y, mask=in_group[:, None] & in_head[None, :])
        return
    first_head = row.to(tl.int64) * HQ + kv_head * GROUP
    slots = PREFIX_SHARES + splits
    at = (first_head + group) * slots + PREFIX_SHARES + split
    tl.store(stats_ptr + at * 2, peak, mask=in_group)
    tl.store(stats_ptr + at * 2 + 1, mass, mask=in_group)
    to_partial = partial_ptr + at[:, None] * D_BLOCK + columns[None, :]
    tl.store(to_partial, acc, mask=in_group[:, None])
    tl.debug_barrier()  # all stores of this program precede its arrival
    counter = counters_ptr + row * HK + kv_head
    if tl.atomic_add(counter, 1, sem="acq_rel") != used - 1:
        return
    tl.store(counter, 0)
    skipped = PREFIX_SHARES - prefix_shares  # slots that this row's prefix would have filled
    _merge_shares(
        partial_ptr + skipped * D_BLOCK,
        stats_ptr + skipped * 2,
        sinks_ptr if sinks_ptr is None else sinks_ptr + kv_head * GROUP,
        out_ptr + token * (HQ * D) + kv_head * (GROUP * D),
        first_head,
        prefix_shares + used,
        slots,
        GROUP,
        D,
        D_BLOCK,
        MAX_SHARES,
        MERGE_BLOCK,
        MERGE_GROUP,
    )
