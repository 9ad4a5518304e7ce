"""Split-KV paged attention for rows with one query token.

Grid: (split, KV head, row). A program attends all query heads of one KV head to its share of the
row's keys. The last program of a (row, head) to arrive merges the shares, so there is no second
launch. The grid depends on shapes alone: the kernel is plan-free and graph-safe, rows of any
length (also none) may stand anywhere, and rows with other query lengths are left alone.

A sink joins a head's softmax once, where its output is divided.

Where rows share leading blocks, ``shared_prefix`` puts its shares of those keys first, and a row
begins after its prefix. Both kernels run beside each other, one bound by arithmetic and one by
memory; a third merges.
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
    max_shared_memory,
    num_multiprocessors,
    pdl_options,
    upcast_attention,
    value_operand,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.merge_shares import (
    MERGE_BLOCK,
    merge_beside_prefix,
    merge_shares,
    shares_of_row,
)
from xllm.hardware.kernels.triton.prefill_attention import add_sinks, blocks_of_tile
from xllm.hardware.kernels.triton.shared_prefix import (
    attend_shared_prefix,
    choose_prefix_shares,
    choose_prefix_tile,
)

_LOG2E = 1.4426950408889634
_PROGRAMS_PER_SM = 8
MAX_SPLITS = 16
_WIDE_TILE_BYTES = 144 << 10  # shared memory of a program that folds 128 keys at a time


@dataclasses.dataclass(frozen=True, slots=True)
class SplitPlan:
    """How a (row, head)'s keys are shared out: at most ``splits`` shares, none of them tiny."""

    splits: int  # a power of two
    min_keys: int  # least keys per share


@dataclasses.dataclass(frozen=True, slots=True)
class KeyTile:
    """The keys that a program folds at a time, its warps, and the tiles that are under way."""

    block_n: int
    num_warps: int
    num_stages: int


def choose_splits(
    num_rows: int, num_kv_heads: int, num_sms: int, *, beside_prefix: bool = False
) -> SplitPlan:
    """Fill the device a few times when rows are few; break up only long rows when they are many.

    Measured on an H200: a merge costs about 3 µs, which a share of 512 keys hides. Of many rows
    beside a prefix, most have few keys of their own: second shares would be empty programs.
    """
    programs = num_rows * num_kv_heads
    wanted = _PROGRAMS_PER_SM * num_sms // programs
    if wanted == 0:
        return SplitPlan(1 if beside_prefix else 2, 1024)
    min_keys = 128 if programs < 32 else 256 if programs < 256 else 512
    return SplitPlan(min(1 << (max(wanted, 2).bit_length() - 1), MAX_SPLITS), min_keys)


def choose_key_tile(
    q: Tensor, cache: Tensor, programs: int, num_sms: int, *, beside_prefix: bool = False
) -> KeyTile:
    """By programs, which are (row, KV head) pairs before they are shared out, per multiprocessor.

    Measured on an H200; the bounds lie between the loads that were. 128 keys at a time suit
    programs with a multiprocessor to themselves: in 16 bits, two such tiles leave no room for a
    second program. A third stage costs resident programs. It pays below one program per
    multiprocessor and from four to eight, where few are left to hide each other's latency at the
    end; 8-bit tiles are half as large, and for them it pays always.

    Programs beside those of a prefix share multiprocessors with larger ones: they are smaller.
    """
    if q.dtype == torch.float32:
        return KeyTile(16, 4, 2)
    eight_bit = cache.itemsize == 1
    if beside_prefix:
        return KeyTile(32, 2, 4) if eight_bit else KeyTile(32, 4, 3)
    block_n, num_stages = 64, 3
    has_room = max_shared_memory(q.device) >= _WIDE_TILE_BYTES and q.shape[2] <= 256
    if has_room and (programs < num_sms if eight_bit else programs * 8 <= num_sms):
        block_n = 128
    elif not eight_bit and (num_sms <= programs < 4 * num_sms or programs >= 8 * num_sms):
        num_stages = 2
    if q.shape[2] > 128:
        block_n //= 2
    return KeyTile(block_n, 4, num_stages)


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
    tile: KeyTile | None = None,
) -> None:
    """Fill ``out`` (T, Hq, D) for every row that has exactly one query token.

    Shapes as in ``ops.paged_attention``; the last keyword arguments are tuning choices.

    Args:
        prefix: rows whose first tokens are the same blocks, to be read once for all of them; not
            with a window.
    """
    assert prefix is None or not window
    rows = seq_lens.shape[0]
    _, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    sms = num_multiprocessors(q.device)
    if rows * kv_heads > MAX_COUNTERS:
        plan, prefix = SplitPlan(1, 1), None
    beside = prefix is not None
    if plan is None:
        plan = choose_splits(rows, kv_heads, sms, beside_prefix=beside)
    assert plan.splits <= MAX_SPLITS
    splits = plan.splits
    if tile is None:
        tile = choose_key_tile(q, k_cache, rows * kv_heads, sms, beside_prefix=beside)
    group = heads // kv_heads
    d_block = triton.next_power_of_2(head_dim)
    prefix_shares = 0
    if prefix is not None:
        prefix_tile = choose_prefix_tile(q, k_cache)
        prefix_shares = choose_prefix_shares(rows, kv_heads, group, prefix_tile, sms)
    partial = stats = out
    if splits + prefix_shares > 1:
        shape = (rows, heads, prefix_shares + splits)
        partial = torch.empty((*shape, d_block), dtype=torch.float32, device=q.device)
        stats = torch.empty((*shape, 2), dtype=torch.float32, device=q.device)
    if prefix is not None:
        attend_shared_prefix(
            q,
            k_cache,
            v_cache,
            block_table,
            prefix,
            scale,
            softcap,
            partial,
            stats,
            prefix_shares,
            prefix_tile,
        )
    lens = prefix.lens if prefix is not None else None
    min_tiles = max(plan.min_keys // tile.block_n, 1)
    shares = {
        "HQ": heads,
        "HK": kv_heads,
        "D": head_dim,
        "GROUP": group,
        "D_BLOCK": d_block,
        "BLOCK_N": tile.block_n,
        "PREFIX_SHARES": prefix_shares,
        "MAX_SHARES": MAX_SPLITS if prefix is None else 2 * MAX_SPLITS,
        "MERGE_BLOCK": MERGE_BLOCK,
        "MERGE_GROUP": triton.next_power_of_2(group),
        "WINDOW": window,
        **pdl_options(q.device),
    }
    _decode_attention_kernel[(splits, kv_heads, rows + beside)](
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
        lens,
        sinks,
        scale * _LOG2E,
        softcap * _LOG2E if softcap else 1.0,
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        splits,
        min_tiles,
        rows,
        GROUP_BLOCK=max(16, triton.next_power_of_2(group)),
        BLOCK_SIZE=k_cache.shape[1],
        SOFTCAP=softcap > 0,
        UPCAST=upcast_attention(q, k_cache),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **shares,
    )
    if prefix is not None:
        merge_beside_prefix(
            query_start_loc,
            seq_lens,
            prefix.lens,
            sinks,
            partial,
            stats,
            out,
            splits,
            min_tiles,
            shares,
        )


# One compilation for all batch sizes: they differ in splits and min_tiles alone.
@triton.jit(do_not_specialize=["splits", "min_tiles", "num_rows"])
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
    num_rows,
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
    if PREFIX_SHARES > 0:
        # The kernel before this one is that of the prefixes, which waited before it let this start:
        # there is nothing left to wait for but its end, and that is for the merge. It waits for
        # this kernel, in which a last row of programs has no other work.
        allow_consumers(PDL)
        if row == num_rows:
            wait_for_producers(PDL)
            return
    else:
        allow_consumers_of_few(num_rows, PDL)
        wait_for_producers(PDL)
        allow_consumers(PDL)
    token = tl.load(query_start_ptr + row).to(tl.int64)
    query_len = tl.load(query_start_ptr + row + 1) - token
    seq_len = tl.load(seq_lens_ptr + row)
    if (query_len != 1) | (seq_len <= 0):
        return
    prefix_shares, first_tile, num_tiles, tiles_per_split, used = shares_of_row(
        row, seq_len, prefix_lens_ptr, splits, min_tiles, BLOCK_N, PREFIX_SHARES, WINDOW
    )
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
    last_block = (seq_len - 1) // BLOCK_SIZE
    next_block = blocks_of_tile(table, begin, last_block, BLOCK_N, BLOCK_SIZE)
    for tile in range(begin, end):
        block = next_block.to(tl.int64)
        next_block = blocks_of_tile(table, tile + 1, last_block, BLOCK_N, BLOCK_SIZE)
        keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        visible = keys < seq_len
        if WINDOW > 0:
            visible &= keys >= seq_len - WINDOW
        within = keys % BLOCK_SIZE
        k = tl.load(
            k_head + (block * k_stride_block + within * k_stride_token)[None, :] + columns[:, None],
            mask=visible[None, :] & in_head[:, None],
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
    if PREFIX_SHARES == 0:
        tl.debug_barrier()  # all stores of this program precede its arrival
        counter = counters_ptr + row * HK + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
            tl.store(counter, 0)
            merge_shares(
                partial_ptr,
                stats_ptr,
                sinks_ptr,
                out_ptr + token * (HQ * D),
                row,
                kv_head,
                prefix_shares,
                used,
                slots,
                HQ,
                GROUP,
                D,
                D_BLOCK,
                PREFIX_SHARES,
                MAX_SHARES,
                MERGE_BLOCK,
                MERGE_GROUP,
            )
