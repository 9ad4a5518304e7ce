"""Mixture of experts for very few tokens: every pair streams its expert's weights.

Two launches, no grouping: the first writes activation(gate) * up of each pair, the second sums a
token's experts as it multiplies. Pairs of one expert read its weights twice, mostly out of L2.

The norms around the experts of one token take no launch: see ``matvec``.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.launch import (
    INTERPRETED,
    allow_consumers,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.matvec import (
    Norm,
    add_pairs,
    add_to_residual,
    add_triples,
    load_squares,
    split_norm,
)
from xllm.hardware.kernels.triton.packed import HALF, PackedExperts


@dataclasses.dataclass(frozen=True, slots=True)
class PairTile:
    """Tuning of the two products."""

    up_n: int = 4
    up_k: int = 1024
    up_warps: int = 4
    down_n: int = 2
    down_k: int = 256
    down_warps: int = 4


def stream_experts(
    x: Tensor | UnscaledToken,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    tile: PairTile | None = None,
) -> Tensor:
    """``ops.apply_experts`` for few tokens. Shapes as there."""
    return _stream(x, packed, weights, experts, activation, None, tile)[0]


def stream_experts_add_norm(
    x: Tensor | UnscaledToken,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    norm: Norm,
    tile: PairTile | None = None,
) -> UnscaledToken:
    """The norm of ``norm.residual += stream_experts(x, ...)`` of one token, but for its last
    step."""
    values, squares = _stream(x, packed, weights, experts, activation, norm, tile)
    assert squares is not None
    return UnscaledToken(values, squares, norm.eps)


def _stream(
    x: Tensor | UnscaledToken,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    norm: Norm | None,
    tile: PairTile | None,
) -> tuple[Tensor, Tensor | None]:
    """The result and, with ``norm``, sums of squares of the new residual by program."""
    tile = tile or PairTile()
    x, squares, eps = split_norm(x)
    tokens, hidden = x.shape
    top_k = experts.shape[1]
    inner = packed.down.shape[2]
    assert tokens == 1 or (squares is None and norm is None)
    activated = torch.empty((tokens * top_k, inner), dtype=x.dtype, device=x.device)
    _up_kernel[(triton.cdiv(inner, tile.up_n), tokens * top_k)](
        x,
        squares,
        packed.gate_up,
        packed.gate_up_bias,
        experts,
        activated,
        eps,
        hidden,
        inner,
        TOP_K=top_k,
        KIND=KINDS[activation],
        HALF=HALF,
        PARTS=0 if squares is None else squares.numel(),
        INTERPRETED=INTERPRETED,
        BLOCK_N=tile.up_n,
        BLOCK_K=min(tile.up_k, triton.next_power_of_2(hidden)),
        num_warps=tile.up_warps,
        **pdl_options(x.device),
    )
    out = torch.empty_like(x)
    programs = triton.cdiv(hidden, tile.down_n)
    new_squares = None
    if norm is not None:
        assert norm.residual.is_contiguous() and norm.residual.shape == out.shape
        new_squares = torch.empty(programs, dtype=torch.float32, device=x.device)
    _down_kernel[(programs, tokens)](
        activated,
        packed.down,
        packed.down_bias,
        experts,
        weights,
        out,
        norm.residual if norm else None,
        norm.weight if norm else None,
        new_squares,
        norm.offset if norm else 0.0,
        hidden,
        inner,
        TOP_K=top_k,
        K_BLOCK=triton.next_power_of_2(top_k),
        BLOCK_N=tile.down_n,
        BLOCK_K=min(tile.down_k, triton.next_power_of_2(inner)),
        num_warps=tile.down_warps,
        **pdl_options(x.device),
    )
    return out, new_squares


@triton.jit
def _up_kernel(
    x_ptr,  # (T, H)
    squares_ptr,  # (PARTS,) float32, whose sum is that of the squares that scale x; or None
    weight_ptr,  # (E, 2I, H), interleaved
    bias_ptr,  # (E, 2I), or None
    experts_ptr,  # (P,) int32
    out_ptr,  # (P, I)
    eps,  # of the norm that scales x
    hidden,
    inner,
    TOP_K: tl.constexpr,
    KIND: tl.constexpr,
    HALF: tl.constexpr,
    PARTS: tl.constexpr,
    INTERPRETED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    in_n = n < inner
    gate_rows = n + n // HALF * HALF  # the up rows are HALF further
    # In this order: the next kernel reads the routing, which is complete only now.
    wait_for_producers(PDL)
    allow_consumers(PDL)
    expert = tl.load(experts_ptr + pair).to(tl.int64)
    rows = weight_ptr + (expert * 2 * inner + gate_rows)[:, None] * hidden
    x_row = x_ptr + (pair // TOP_K) * hidden
    if squares_ptr is not None:
        squares = load_squares(squares_ptr, k, PARTS, BLOCK_K)
        squares = tl.broadcast_to(squares[None, :], [BLOCK_N, BLOCK_K])
    gate = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in tl.range(0, hidden, BLOCK_K, num_stages=3):
        kk = start + k
        mask = in_n[:, None] & (kk < hidden)[None, :]
        x = tl.load(x_row + kk, mask=kk < hidden, other=0.0).to(tl.float32)[None, :]
        g = tl.load(rows + kk[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        u = tl.load(
            rows + HALF * hidden + kk[None, :],
            mask=mask,
            other=0.0,
            eviction_policy="evict_first",
        )
        gate += g.to(tl.float32) * x
        up += u.to(tl.float32) * x
    if INTERPRETED:  # it takes minutes over tuples
        gates, ups = tl.sum(gate, axis=1), tl.sum(up, axis=1)
        if squares_ptr is not None:
            squares = tl.sum(squares, axis=1)
    elif squares_ptr is not None:
        gates, ups, squares = tl.reduce((gate, up, squares), 1, add_triples)
    else:
        gates, ups = tl.reduce((gate, up), 1, add_pairs)
    if squares_ptr is not None:
        x_scale = 1.0 / tl.sqrt(squares / hidden + eps)
        gates *= x_scale
        ups *= x_scale
    if bias_ptr is not None:
        biases = bias_ptr + expert * 2 * inner + gate_rows
        gates += tl.load(biases, mask=in_n, other=0.0).to(tl.float32)
        ups += tl.load(biases + HALF, mask=in_n, other=0.0).to(tl.float32)
    y = gated(gates, ups, KIND)
    tl.store(out_ptr + pair * inner + n, y.to(out_ptr.dtype.element_ty), mask=in_n)


@triton.jit
def _down_kernel(
    x_ptr,  # (T, TOP_K, I)
    weight_ptr,  # (E, H, I)
    bias_ptr,  # (E, H), or None
    experts_ptr,  # (T, TOP_K) int32
    weights_ptr,  # (T, TOP_K) float32
    out_ptr,  # (T, H)
    residual_ptr,  # (H,), which takes the sum whose norm is the output; or None
    norm_ptr,  # (H,) weight of that norm
    squares_ptr,  # float32, one of each program
    offset,  # of that norm
    hidden,
    inner,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1)
    places = tl.arange(0, K_BLOCK)
    k = tl.arange(0, BLOCK_K)
    in_n = n < hidden
    chosen = places < TOP_K
    allow_consumers(PDL)
    # Routing and weights do not depend on the kernel before, which waited for the router.
    experts = tl.load(experts_ptr + token * TOP_K + places, mask=chosen, other=0).to(tl.int64)
    weights = tl.load(weights_ptr + token * TOP_K + places, mask=chosen, other=0.0)
    rows = weight_ptr + (experts[:, None] * hidden + n[None, :])[:, :, None] * inner
    x_rows = x_ptr + (token * TOP_K + places)[:, None] * inner
    w_mask = chosen[:, None, None] & in_n[None, :, None]
    w = tl.load(
        rows + k[None, None, :],
        mask=w_mask & (k < inner)[None, None, :],
        other=0.0,
        eviction_policy="evict_first",
    )
    if norm_ptr is not None:
        norm_weight = tl.load(norm_ptr + n, mask=in_n, other=0.0).to(tl.float32) + offset
    wait_for_producers(PDL)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + n, mask=in_n, other=0.0).to(tl.float32)
    x_mask = chosen[:, None] & (k < inner)[None, :]
    x = tl.load(x_rows + k[None, :], mask=x_mask, other=0.0).to(tl.float32)
    acc = w.to(tl.float32) * (x * weights[:, None])[:, None, :]
    for start in tl.range(BLOCK_K, inner, BLOCK_K, num_stages=3):
        kk = start + k
        in_k = kk < inner
        x_mask = chosen[:, None] & in_k[None, :]
        x = tl.load(x_rows + kk[None, :], mask=x_mask, other=0.0).to(tl.float32)
        w = tl.load(
            rows + kk[None, None, :],
            mask=w_mask & in_k[None, None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        acc += w.to(tl.float32) * (x * weights[:, None])[:, None, :]
    parts = tl.sum(acc, axis=2)
    if bias_ptr is not None:
        biases = bias_ptr + experts[:, None] * hidden + n[None, :]
        bias = tl.load(biases, mask=chosen[:, None] & in_n[None, :], other=0.0)
        parts += bias.to(tl.float32) * weights[:, None]
    y = tl.sum(parts, axis=0)
    if residual_ptr is not None:
        y = y.to(out_ptr.dtype.element_ty).to(tl.float32)
        y = add_to_residual(y, residual, norm_weight, residual_ptr, squares_ptr, n, hidden)
    tl.store(out_ptr + token * hidden + n, y.to(out_ptr.dtype.element_ty), mask=in_n)
