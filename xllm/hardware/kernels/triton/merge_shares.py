"""Merges the shares of a row's keys into attention's output.

A share is a softmax over some keys that is not divided yet: for every query head the sum of
weighted values, the largest score (times log2(e)) and the sum of weights. Shares are summed in a
fixed order, whoever finishes last. ``decode_attention`` makes them, of prefixes ``shared_prefix``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import allow_consumers, wait_for_producers
from xllm.hardware.kernels.triton.prefill_attention import add_sinks

MERGE_BLOCK = 4
_MERGE_WARPS = 2


def merge_beside_prefix(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    prefix_lens: Tensor,
    sinks: Tensor | None,
    partial: Tensor,
    stats: Tensor,
    out: Tensor,
    splits: int,
    min_tiles: int,
    shares: dict[str, Any],
) -> None:
    """Fill ``out`` (T, Hq, D) where the attention kernel left shares: for rows with a prefix, and
    those whose keys were shared out.

    Args:
        prefix_lens: (S,) int32, tokens of each row's prefix, 0 for none.
        partial: (S, Hq, shares, D rounded up to a power of two) float32.
        stats: (S, Hq, shares, 2) float32, the largest score and the sum of weights.
        splits: shares of a row's own keys, at most; those of prefixes stand before them.
        min_tiles: least tiles of keys per share.
        shares: the constants of ``_merge_kernel`` and its launch options.
    """
    _merge_kernel[(shares["HK"], seq_lens.shape[0])](
        query_start_loc,
        seq_lens,
        prefix_lens,
        sinks,
        partial,
        stats,
        out,
        splits,
        min_tiles,
        num_warps=_MERGE_WARPS,
        **shares,
    )


@triton.jit
def shares_of_row(
    row,
    seq_len,
    prefix_lens_ptr,
    splits,
    min_tiles,
    BLOCK_N: tl.constexpr,
    PREFIX_SHARES: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """How a row's keys are shared out: ``(prefix shares, first tile of its own keys, such tiles,
    tiles per share, shares used)``."""
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
    return prefix_shares, first_tile, num_tiles, tiles_per_split, used


@triton.jit
def merge_shares(
    partial_ptr,
    stats_ptr,
    sinks_ptr,
    out_ptr,
    row,
    kv_head,
    prefix_shares,
    used,
    slots,
    HQ: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    PREFIX_SHARES: tl.constexpr,
    MAX_SHARES: tl.constexpr,
    MERGE_BLOCK: tl.constexpr,
    MERGE_GROUP: tl.constexpr,
):
    """Write the outputs of a KV head's group from its shares, in a fixed order.

    ``prefix_shares`` and ``used`` shares, which stand side by side in the ``slots`` of each head.
    ``out_ptr`` points at the row's token.
    """
    # A row without a prefix leaves the first slots empty.
    skipped = PREFIX_SHARES - prefix_shares
    partial_ptr += skipped * D_BLOCK
    stats_ptr += skipped * 2
    used += prefix_shares
    first_head = row.to(tl.int64) * HQ + kv_head * GROUP
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
        mass = add_sinks(mass, peak, sinks_ptr + kv_head * GROUP + group, in_group)
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
        out_ptr + (kv_head * GROUP + group)[:, None] * D + columns[None, :],
        y.to(out_ptr.dtype.element_ty),
        mask=in_group[:, None] & (columns < D)[None, :],
    )


@triton.jit(do_not_specialize=["splits", "min_tiles"])
def _merge_kernel(
    query_start_ptr,  # (S + 1,) int32
    seq_lens_ptr,  # (S,) int32
    prefix_lens_ptr,  # (S,) int32
    sinks_ptr,  # (HQ,) float32, or None
    partial_ptr,  # (S, HQ, PREFIX_SHARES + splits, D_BLOCK) float32, unnormalised
    stats_ptr,  # (S, HQ, PREFIX_SHARES + splits, 2) float32: peak, mass
    out_ptr,  # (T, HQ, D) contiguous
    splits,
    min_tiles,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    D_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PREFIX_SHARES: tl.constexpr,
    MAX_SHARES: tl.constexpr,
    MERGE_BLOCK: tl.constexpr,
    MERGE_GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (KV head, row): what the attention kernel left to merge."""
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    token = tl.load(query_start_ptr + row).to(tl.int64)
    query_len = tl.load(query_start_ptr + row + 1) - token
    seq_len = tl.load(seq_lens_ptr + row)
    prefix_shares, _first_tile, _num_tiles, _tiles_per_split, used = shares_of_row(
        row, seq_len, prefix_lens_ptr, splits, min_tiles, BLOCK_N, PREFIX_SHARES, WINDOW
    )
    if (query_len != 1) | (seq_len <= 0) | (prefix_shares + used == 1):
        return
    merge_shares(
        partial_ptr,
        stats_ptr,
        sinks_ptr,
        out_ptr + token * (HQ * D),
        row,
        kv_head,
        prefix_shares,
        used,
        PREFIX_SHARES + splits,
        HQ,
        GROUP,
        D,
        D_BLOCK,
        PREFIX_SHARES,
        MAX_SHARES,
        MERGE_BLOCK,
        MERGE_GROUP,
    )
