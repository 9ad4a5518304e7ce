"""The keys that several decode rows share, read once for all of them.

Grid: (share, KV head, tile of rows). A tile holds the query heads of one KV head for rows with the
same leading blocks: one matrix product where separate rows would read those blocks again each.
The results are unnormalised shares, which ``decode_attention`` merges with those of each row's own
keys: its kernel runs beside this one, which therefore lets it start only after its own wait. The
grid depends on shapes alone and tiles without rows end at once, so the kernel is graph-safe.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.shared_prefix import LINE_ROWS, SharedPrefix
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    attention_operand,
    max_shared_memory,
    pdl_options,
    upcast_attention,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.prefill_attention import attend_tile, blocks_of_tile

_LOG2E = 1.4426950408889634
_MAX_SHARES = 8
_DEEP_TILE_BYTES = 128 << 10  # shared memory of a program of wide heads with a third stage


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixTile:
    """Query heads of one KV head, over rows, and keys that a program multiplies at a time."""

    block_m: int  # at most; a multiple of the query heads of a KV head
    block_n: int
    num_warps: int
    num_stages: int
    fills: float  # the multiprocessors that programs of it shall take


def choose_prefix_tile(q: Tensor, cache: Tensor) -> PrefixTile:
    """The tile, and how much of the device its programs leave to those of the rows' own keys.

    Measured on an H200, 2,048 shared and 96 own keys: programs of 128 query rows are fastest on a
    half of the multiprocessors, smaller ones and those which convert keys on all of them.
    """
    group_block = triton.next_power_of_2(q.shape[1] // cache.shape[2])
    block_m, num_warps = (128, 8) if group_block >= 4 else (64, 4)
    fills = 0.5 if block_m == 128 and cache.dtype == q.dtype else 1.0
    block_n, num_stages = 64, 3
    if q.dtype == torch.float32:
        block_m, block_n = max(32, group_block), 16
    elif q.shape[2] > 128:
        block_m, block_n = max(64, group_block), 32
        if q.shape[2] > 256 or max_shared_memory(q.device) < _DEEP_TILE_BYTES:
            num_stages = 2
    block_m = min(block_m, LINE_ROWS * group_block)
    return PrefixTile(block_m, block_n, num_warps, num_stages, fills)


def choose_prefix_shares(
    num_rows: int, num_kv_heads: int, group: int, tile: PrefixTile, num_sms: int
) -> int:
    """Shares of the prefix: as many as ``tile`` wishes to run at once when all rows are members."""
    lines = triton.cdiv(num_rows, LINE_ROWS)
    tiles = lines * LINE_ROWS * triton.next_power_of_2(group) // tile.block_m
    wanted = max(int(tile.fills * num_sms) // (tiles * num_kv_heads), 1)
    return min(1 << (wanted.bit_length() - 1), _MAX_SHARES)


def attend_shared_prefix(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    prefix: SharedPrefix,
    scale: float,
    softcap: float,
    partial: Tensor,
    stats: Tensor,
    shares: int,
    tile: PrefixTile,
) -> None:
    """Fill slots ``0 .. shares`` of every member row.

    Args:
        q: (S, Hq, D), one query token per row of the batch.
        partial: (S, Hq, slots, D') float32, sums of values weighted by ``exp2(score - peak)``.
        stats: (S, Hq, slots, 2) float32, peak and sum of weights.
        shares: into how many parts the prefix's keys are split.
    """
    _, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    group = heads // kv_heads
    group_block = triton.next_power_of_2(group)
    tiles = prefix.members.numel() * group_block // tile.block_m
    _shared_prefix_kernel[(shares, kv_heads, tiles)](
        q,
        k_cache,
        v_cache,
        prefix.members,
        prefix.lens,
        block_table,
        partial,
        stats,
        scale * _LOG2E,
        softcap * _LOG2E if softcap else 1.0,
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        partial.shape[2],
        shares,
        HQ=heads,
        D=head_dim,
        GROUP=group,
        GROUP_BLOCK=group_block,
        D_BLOCK=partial.shape[3],
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_SIZE=k_cache.shape[1],
        SOFTCAP=softcap > 0,
        UPCAST=upcast_attention(q, k_cache),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(q.device),
    )


@triton.jit(do_not_specialize=["slots", "shares"])
def _shared_prefix_kernel(
    q_ptr,  # (S, HQ, D)
    k_ptr,  # (blocks, BLOCK_SIZE, HK, D), strided
    v_ptr,
    members_ptr,  # (L * LINE_ROWS,) int32
    prefix_lens_ptr,  # (S,) int32
    block_table_ptr,  # (S, B) int32
    partial_ptr,  # (S, HQ, slots, D_BLOCK) float32
    stats_ptr,  # (S, HQ, slots, 2) float32
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
    slots,
    shares,
    HQ: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    share = tl.program_id(0)
    kv_head = tl.program_id(1)
    ROWS: tl.constexpr = BLOCK_M // GROUP_BLOCK
    line = members_ptr + tl.program_id(2) * ROWS
    wait_for_producers(PDL)
    allow_consumers(PDL)
    first = tl.load(line).to(tl.int64)
    if first < 0:
        return
    prefix_len = tl.load(prefix_lens_ptr + first)
    num_tiles = prefix_len // BLOCK_N
    tiles_per_share = tl.cdiv(num_tiles, shares)
    begin = tl.minimum(share * tiles_per_share, num_tiles)
    end = tl.minimum(begin + tiles_per_share, num_tiles)

    member = tl.arange(0, BLOCK_M)
    rows = tl.load(line + member // GROUP_BLOCK).to(tl.int64)
    group = member % GROUP_BLOCK
    heads = kv_head * GROUP + group
    columns = tl.arange(0, D_BLOCK)
    in_head = columns < D
    valid = (rows >= 0) & (group < GROUP)
    q = tl.load(
        q_ptr + (rows * q_stride_token + heads * q_stride_head)[:, None] + columns[None, :],
        mask=valid[:, None] & in_head[None, :],
        other=0.0,
    )
    q = attention_operand(q, k_ptr, UPCAST)
    # A share without keys keeps a peak that gives it no weight.
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_BLOCK], tl.float32)
    table = block_table_ptr + first * table_stride
    k_head = k_ptr + kv_head * k_stride_head
    v_head = v_ptr + kv_head * v_stride_head
    cache = (k_head, v_head, k_stride_block, k_stride_token, v_stride_block, v_stride_token)
    last_block = (prefix_len - 1) // BLOCK_SIZE
    next_block = blocks_of_tile(table, begin, last_block, BLOCK_N, BLOCK_SIZE)
    for tile in range(begin, end):
        block = next_block
        next_block = blocks_of_tile(table, tile + 1, last_block, BLOCK_N, BLOCK_SIZE)
        acc, mass, peak = attend_tile(
            q, acc, mass, peak, block, tile, member, 0, 0, cache, scale, softcap, columns, in_head,
            BLOCK_N, BLOCK_SIZE, 0, SOFTCAP, False, UPCAST, PRECISION,
        )  # fmt: skip
    at = (rows * HQ + heads) * slots + share
    tl.store(stats_ptr + at * 2, peak, mask=valid)
    tl.store(stats_ptr + at * 2 + 1, mass, mask=valid)
    tl.store(partial_ptr + at[:, None] * D_BLOCK + columns[None, :], acc, mask=valid[:, None])
