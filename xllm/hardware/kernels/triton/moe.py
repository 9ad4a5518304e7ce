"""Mixture of experts: grouped products that read each expert's weights once, and nothing permuted.

A *pair* is one choice of one token: pair ``p`` belongs to token ``p // top_k``. The pairs of every
expert are listed in order; a block is up to BLOCK_M pairs of one expert. Which block a program has
is found on the device from the counts, the grid is a bound from shapes alone: graph-safe.
Weights are the first operand of each product, so that a block of 16 tokens wastes no matrix unit.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.reference.moe import PackedExperts
from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    pdl_options,
    upcast_dots,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.moe_stream import stream_experts

MAX_STREAMED_TOKENS = 4
_REDUCE_BLOCK = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTile:
    """Tuning of one grouped product."""

    block_m: int  # pairs of one expert
    block_n: int  # outputs
    block_k: int
    num_warps: int = 4
    num_stages: int = 4


@dataclasses.dataclass(frozen=True, slots=True)
class GroupedPairs:
    """The pairs of every expert."""

    lists: Tensor  # (E, T) int32: pairs, ascending; undefined beyond the count
    counts: Tensor  # (E,) int32


def pack_experts(
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> PackedExperts:
    """See ``ops.pack_experts``."""
    assert (gate_up_bias is None) == (down_bias is None)
    if gate_up_bias is not None and down_bias is not None:
        gate_up_bias, down_bias = gate_up_bias.contiguous(), down_bias.contiguous()
    return PackedExperts(gate_up.contiguous(), down.contiguous(), gate_up_bias, down_bias)


def apply_experts(
    x: Tensor, packed: PackedExperts, weights: Tensor, experts: Tensor, activation: str
) -> Tensor:
    """See ``ops.apply_experts``."""
    tokens = x.shape[0]
    if not tokens:
        return torch.empty_like(x)
    if tokens <= MAX_STREAMED_TOKENS:
        return stream_experts(x.contiguous(), packed, weights, experts, activation)
    num_experts = packed.down.shape[0]
    tiles = choose_tiles(experts.numel(), num_experts, x.dtype)
    return grouped_experts(x.contiguous(), packed, weights, experts, activation, *tiles)


def choose_tiles(pairs: int, num_experts: int, dtype: torch.dtype) -> tuple[GroupTile, GroupTile]:
    """Tiles of the two products, about the pairs of an expert high; measured on an H200."""
    if dtype == torch.float32:
        return GroupTile(16, 32, 32, num_stages=2), GroupTile(16, 32, 32, num_stages=2)
    per_expert = pairs / num_experts
    if per_expert <= 32:
        block_m = 16 if per_expert <= 8 else 32
        return GroupTile(block_m, 128, 64), GroupTile(block_m, 128, 64)
    if per_expert <= 80:
        return GroupTile(64, 128, 64, 8), GroupTile(64, 128, 64)
    return GroupTile(128, 128, 64, 8, 4), GroupTile(128, 256, 64, 8, 3)


def grouped_experts(
    x: Tensor,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    up_tile: GroupTile,
    down_tile: GroupTile,
) -> Tensor:
    """``apply_experts`` for any number of tokens, with explicit tiles."""
    tokens, hidden = x.shape
    pairs, top_k = experts.numel(), experts.shape[1]
    inner = packed.down.shape[2]
    grouped = group_pairs(experts, packed.down.shape[0])
    activated = torch.empty((pairs, inner), dtype=x.dtype, device=x.device)
    kind = KINDS[activation]
    _product(x, packed.gate_up, packed.gate_up_bias, grouped, activated, None, top_k, kind, up_tile)
    parts = torch.empty((pairs, hidden), dtype=x.dtype, device=x.device)
    _product(activated, packed.down, packed.down_bias, grouped, parts, weights, 1, None, down_tile)
    out = torch.empty_like(x)
    _reduce_kernel[(tokens, triton.cdiv(hidden, _REDUCE_BLOCK))](
        parts,
        out,
        hidden,
        TOP_K=top_k,
        K_BLOCK=triton.next_power_of_2(top_k),
        BLOCK=min(_REDUCE_BLOCK, triton.next_power_of_2(hidden)),
        num_warps=4,
        **pdl_options(x.device),
    )
    return out


def group_pairs(experts: Tensor, num_experts: int) -> GroupedPairs:
    """The pairs (T, top_k) of every expert, in order: no atomics, the same lists every time."""
    tokens, pairs = experts.shape[0], experts.numel()
    lists = torch.empty((num_experts, tokens), dtype=torch.int32, device=experts.device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=experts.device)
    block = min(max(triton.next_power_of_2(pairs), 128), 8192)
    _group_kernel[(num_experts, triton.cdiv(pairs, block))](
        experts,
        lists,
        counts,
        pairs,
        tokens,
        BLOCK=block,
        num_warps=4 if block <= 4096 else 16,
        **pdl_options(experts.device),
    )
    return GroupedPairs(lists, counts)


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grouped: GroupedPairs,
    out: Tensor,
    weights: Tensor | None,
    pairs_per_row: int,
    activation: int | None,
    tile: GroupTile,
) -> None:
    """Each pair's row of ``x`` times its expert's weight, plus bias: into ``out`` (P, N) by pair.

    With ``activation``, ``weight`` holds gate and up rows, and ``out`` is activation(gate) * up.
    With ``weights``, every pair's row is scaled.
    """
    pairs, outputs = out.shape
    num_experts, _, inputs = weight.shape
    assert weight.shape[1] == (outputs if activation is None else 2 * outputs)
    blocks = min(pairs, pairs // tile.block_m + num_experts)
    n_tiles = triton.cdiv(outputs, tile.block_n)
    _grouped_product_kernel[(blocks * n_tiles,)](
        x,
        weight,
        bias,
        grouped.lists,
        grouped.counts,
        weights,
        out,
        grouped.lists.shape[1],
        outputs,
        inputs,
        n_tiles,
        num_experts,
        PAIRS_PER_ROW=pairs_per_row,
        KIND=activation,
        EVEN=inputs % tile.block_k == 0,
        E_BLOCK=triton.next_power_of_2(num_experts),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        UPCAST=upcast_dots(x.dtype),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )


@triton.jit(do_not_specialize=["num_pairs", "num_tokens"])
def _group_kernel(
    experts_ptr,  # (P,) int32
    lists_ptr,  # (E, T) int32
    counts_ptr,  # (E,) int32
    num_pairs,
    num_tokens,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One run of pairs and one expert: count its pairs before the run, place those inside."""
    expert = tl.program_id(0)
    run = tl.program_id(1)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    each = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for earlier in range(run):
        before += (tl.load(experts_ptr + earlier * BLOCK + each) == expert).to(tl.int32)
    pair = run * BLOCK + each
    found = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=-1) == expert
    count = tl.sum(before, axis=0)
    place = count + tl.cumsum(found.to(tl.int32), axis=0) - 1
    to = lists_ptr + expert.to(tl.int64) * num_tokens + place
    tl.store(to, pair, mask=found & (place < num_tokens))
    if run == tl.num_programs(1) - 1:
        count += tl.sum(found.to(tl.int32), axis=0)
        tl.store(counts_ptr + expert, tl.minimum(count, num_tokens))


@triton.jit(do_not_specialize=["list_length"])
def _grouped_product_kernel(
    x_ptr,  # (P // PAIRS_PER_ROW, K)
    weight_ptr,  # (E, N, K), or (E, 2N, K) with gate rows first
    bias_ptr,  # (E, N) or (E, 2N), or None
    lists_ptr,  # (E, list_length) int32
    counts_ptr,  # (E,) int32
    weights_ptr,  # (P,) float32 or None
    out_ptr,  # (P, N)
    list_length,
    outputs,
    inputs,
    n_tiles,
    num_experts,
    PAIRS_PER_ROW: tl.constexpr,
    KIND: tl.constexpr,  # of the activation, None without one
    EVEN: tl.constexpr,  # inputs is a multiple of BLOCK_K
    E_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0) // n_tiles
    n_tile = tl.program_id(0) % n_tiles
    each = tl.arange(0, E_BLOCK)
    allow_consumers(PDL)
    wait_for_producers(PDL)
    counts = tl.load(counts_ptr + each, mask=each < num_experts, other=0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(blocks, axis=0)
    expert = tl.sum((ends <= block).to(tl.int32), axis=0)
    if expert >= num_experts:
        return
    mine = each == expert
    count = tl.sum(tl.where(mine, counts, 0), axis=0)
    first = (block - tl.sum(tl.where(mine, ends - blocks, 0), axis=0)) * BLOCK_M

    places = first + tl.arange(0, BLOCK_M)
    in_block = places < count
    expert = expert.to(tl.int64)
    pairs = tl.load(lists_ptr + expert * list_length + places, mask=in_block, other=0)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < outputs
    k = tl.arange(0, BLOCK_K)
    # Rows outside repeat the last one: unmasked loads, never stored.
    w_rows = tl.minimum(n, outputs - 1)[:, None].to(tl.int64) * inputs
    w_at = weight_ptr + w_rows + k[None, :]
    if KIND is None:
        w_at += expert * outputs * inputs
    else:
        w_at += expert * 2 * outputs * inputs
    x_at = x_ptr + (pairs // PAIRS_PER_ROW).to(tl.int64)[None, :] * inputs + k[:, None]
    up_offset = outputs.to(tl.int64) * inputs
    y = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        if EVEN:
            x = tl.load(x_at)
            w = tl.load(w_at)
        else:
            x = tl.load(x_at, mask=(start + k < inputs)[:, None], other=0.0)
            w = tl.load(w_at, mask=(start + k < inputs)[None, :], other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        y = tl.dot(w, x, y, input_precision=PRECISION)
        if KIND is not None:
            if EVEN:
                w = tl.load(w_at + up_offset)
            else:
                w = tl.load(w_at + up_offset, mask=(start + k < inputs)[None, :], other=0.0)
            if UPCAST:
                w = w.to(tl.float32)
            up = tl.dot(w, x, up, input_precision=PRECISION)
        x_at += BLOCK_K
        w_at += BLOCK_K
    if bias_ptr is not None:
        biases = bias_ptr + expert * (outputs if KIND is None else 2 * outputs) + n
        y += tl.load(biases, mask=in_n, other=0.0).to(tl.float32)[:, None]
        if KIND is not None:
            up += tl.load(biases + outputs, mask=in_n, other=0.0).to(tl.float32)[:, None]
    if KIND is not None:
        y = gated(y, up, KIND)
    if weights_ptr is not None:
        y *= tl.load(weights_ptr + pairs, mask=in_block, other=0.0)[None, :]
    to = out_ptr + pairs.to(tl.int64)[None, :] * outputs + n[:, None]
    tl.store(to, y.to(out_ptr.dtype.element_ty), mask=in_n[:, None] & in_block[None, :])


@triton.jit
def _reduce_kernel(
    parts_ptr,  # (T, TOP_K, H)
    out_ptr,  # (T, H)
    hidden,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = tl.arange(0, K_BLOCK)
    inside = columns < hidden
    wait_for_producers(PDL)
    allow_consumers(PDL)
    at = (token * TOP_K + places)[:, None] * hidden + columns[None, :]
    mask = (places < TOP_K)[:, None] & inside[None, :]
    parts = tl.load(parts_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.sum(parts, axis=0)
    tl.store(out_ptr + token * hidden + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
