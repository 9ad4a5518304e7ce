"""Mixture of experts for very few tokens: every pair streams its expert's weights.

Two launches, no grouping: the first writes activation(gate) * up of each pair, the second sums a
token's experts as it multiplies. Pairs of one expert read its weights twice, mostly out of L2.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    pdl_options,
    wait_for_producers,
)

HALF = 8


@dataclasses.dataclass(frozen=True, slots=True)
class PackedExperts:
    """Stacked weights, and biases or None.

    Rows of ``gate_up`` and its bias: HALF of the gate, the HALF of up that they meet, and so on.
    One tile of rows then has both halves of its outputs.
    """

    gate_up: Tensor  # (E, 2I, H)
    down: Tensor  # (E, H, I)
    gate_up_bias: Tensor | None = None  # (E, 2I)
    down_bias: Tensor | None = None  # (E, H)


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
    x: Tensor,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    tile: PairTile | None = None,
) -> Tensor:
    """``ops.apply_experts`` for few tokens. Shapes as there."""
    tile = tile or PairTile()
    tokens, hidden = x.shape
    top_k = experts.shape[1]
    inner = packed.down.shape[2]
    activated = torch.empty((tokens * top_k, inner), dtype=x.dtype, device=x.device)
    _up_kernel[(triton.cdiv(inner, tile.up_n), tokens * top_k)](
        x,
        packed.gate_up,
        packed.gate_up_bias,
        experts,
        activated,
        hidden,
        inner,
        TOP_K=top_k,
        KIND=KINDS[activation],
        HALF=HALF,
        BLOCK_N=tile.up_n,
        BLOCK_K=min(tile.up_k, triton.next_power_of_2(hidden)),
        num_warps=tile.up_warps,
        **pdl_options(x.device),
    )
    out = torch.empty_like(x)
    _down_kernel[(triton.cdiv(hidden, tile.down_n), tokens)](
        activated,
        packed.down,
        packed.down_bias,
        experts,
        weights,
        out,
        hidden,
        inner,
        TOP_K=top_k,
        K_BLOCK=triton.next_power_of_2(top_k),
        BLOCK_N=tile.down_n,
        BLOCK_K=min(tile.down_k, triton.next_power_of_2(inner)),
        num_warps=tile.down_warps,
        **pdl_options(x.device),
    )
    return out


@triton.jit
def _up_kernel(
    x_ptr,  # (T, H)
    weight_ptr,  # (E, 2I, H), interleaved
    bias_ptr,  # (E, 2I), or None
    experts_ptr,  # (P,) int32
    out_ptr,  # (P, I)
    hidden,
    inner,
    TOP_K: tl.constexpr,
    KIND: tl.constexpr,
    HALF: tl.constexpr,
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
    gates = tl.sum(gate, axis=1)
    ups = tl.sum(up, axis=1)
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
    wait_for_producers(PDL)
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
    tl.store(out_ptr + token * hidden + n, y.to(out_ptr.dtype.element_ty), mask=in_n)
