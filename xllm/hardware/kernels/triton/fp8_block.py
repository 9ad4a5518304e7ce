"""Products of 8-bit weights with a scale per 128 x 128 block.

Activations have a scale per token and 128 columns, so each step of 128 inputs is one 8-bit product
that both scales multiply while it is added in float32. Few tokens stream the weight, as in
``linear``; many are the library's where it has such a product, and tiled elsewhere. A single token
is not quantized: see ``matvec``.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.tokens import QuantizedTokens
from xllm.hardware.kernels.triton.fp8 import (
    BLOCK,
    MAX_STREAMED_FP8_TOKENS,
    fits_library_by_block,
    linear_fp8_block,
)
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    arrival_counters,
    num_multiprocessors,
    pdl_options,
    upcast_dots,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.split_k import arrives_last, sum_of_shares

# Results of a product from which on the library is faster than tiles: 256 tokens of 4,096 outputs.
_MANY_RESULTS = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTile:
    """Tuning of one product. Streamed: ``block_n`` outputs of all tokens; tiled: ``block_m``."""

    block_n: int
    block_m: int = 0
    k_shares: int = 1
    num_warps: int = 4
    num_stages: int = 4


def linear_block(x: QuantizedTokens, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` (T, K) times weight (N, K) with scale (ceil(N / 128), ceil(K / 128)) -> (T, N)."""
    tokens = x.shape[0]
    if tokens > MAX_STREAMED_FP8_TOKENS:
        results = tokens * weight.shape[0]
        if bias is None and results >= _MANY_RESULTS and fits_library_by_block(x, weight):
            return linear_fp8_block(x, weight, scale)
        return tiled_block(x, weight, scale, bias, tiled_tile(results))
    tile = streamed_tile(tokens, weight, num_multiprocessors(weight.device))
    return stream_block(x, weight, scale, bias, tile)


def streamed_tile(tokens: int, weight: Tensor, num_sms: int) -> BlockTile:
    """The tile for few tokens, from measurements on an H200."""
    outputs, inputs = weight.shape
    tiles, shares = triton.cdiv(outputs, 64), 1
    # Two programs fit on a multiprocessor; a share shorter than 1,024 inputs is all overhead.
    while shares < 4 and tiles * shares <= num_sms and inputs >= 2048 * shares:
        shares *= 2
    stages = 6 if tokens <= 16 else 5 if shares == 4 else 4
    return BlockTile(64, k_shares=shares, num_stages=stages)


def tiled_tile(results: int) -> BlockTile:
    """The tile for many tokens, by how many numbers the product has."""
    if results <= _MANY_RESULTS:
        return BlockTile(64, 64, num_stages=5)
    return BlockTile(128, 64)


def stream_block(
    x: QuantizedTokens, weight: Tensor, scale: Tensor, bias: Tensor | None, tile: BlockTile
) -> Tensor:
    """The product for few tokens with an explicit tile."""
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    assert BLOCK % tile.block_n == 0
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=weight.device)
    shares = tile.k_shares
    partial = out
    if shares > 1:
        partial = torch.empty((shares, tokens, outputs), dtype=torch.float32, device=weight.device)
    k_per_share = triton.cdiv(triton.cdiv(inputs, BLOCK), shares) * BLOCK
    _stream_block_kernel[(triton.cdiv(outputs, tile.block_n), shares)](
        x.values,
        x.scale,
        weight,
        scale,
        bias,
        out,
        partial,
        arrival_counters(weight.device),
        tokens,
        x.scale.stride(0),
        outputs,
        inputs,
        k_per_share,
        EVEN=k_per_share * shares == inputs,
        SHARES=shares,
        BLOCK_T=max(16, triton.next_power_of_2(tokens)),
        BLOCK_N=tile.block_n,
        BLOCK=BLOCK,
        STAGES=tile.num_stages,
        UPCAST=upcast_dots(x.values.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(weight.device),
    )
    return out


@triton.jit(do_not_specialize=["num_tokens", "x_scale_stride"])
def _stream_block_kernel(
    x_ptr,  # (T, K)
    x_scale_ptr,  # (K / BLOCK, T) float32
    weight_ptr,  # (N, K)
    scale_ptr,  # (N / BLOCK, K / BLOCK) float32
    bias_ptr,  # (N,) or None
    out_ptr,  # (T, N)
    partial_ptr,  # (SHARES, T, N) float32
    counters_ptr,  # one per output tile, zero on entry and exit
    num_tokens,
    x_scale_stride,
    outputs,
    inputs,
    inputs_per_share,
    EVEN: tl.constexpr,  # inputs = SHARES * inputs_per_share
    SHARES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,  # divides BLOCK: one row of scales
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    first_n = tl.program_id(0) * BLOCK_N
    n = first_n + tl.arange(0, BLOCK_N)
    in_n = n < outputs
    share = tl.program_id(1)
    start = share * inputs_per_share
    k = tl.arange(0, BLOCK)
    rows = weight_ptr + n.to(tl.int64)[:, None] * inputs
    blocks = tl.cdiv(inputs, BLOCK)
    scale_row = scale_ptr + (first_n // BLOCK) * blocks
    last = blocks - 1  # a share may go past it: on zeros, which any scale leaves zero
    allow_consumers(PDL)
    # Constant weights may be read before the producers are done: the memory stays busy.
    first = start + k
    in_first = first < inputs
    w = tl.load(rows + first[None, :], mask=in_n[:, None] & in_first[None, :], other=0.0)
    wait_for_producers(PDL)
    t = tl.arange(0, BLOCK_T)
    in_t = t < num_tokens
    x_columns = x_ptr + t[None, :] * inputs
    x = tl.load(x_columns + first[:, None], mask=in_t[None, :] & in_first[:, None], other=0.0)
    block = tl.minimum(start // BLOCK, last)
    scale = tl.load(scale_row + block)
    x_scale = tl.load(x_scale_ptr + block * x_scale_stride + t, mask=in_t, other=0.0)
    if UPCAST:
        x = x.to(tl.float32)
        w = w.to(tl.float32)
    y = tl.dot(w, x) * (scale * x_scale)[None, :]
    for at in tl.range(BLOCK, inputs_per_share, BLOCK, num_stages=STAGES):
        kk = start + at + k
        block = tl.minimum((start + at) // BLOCK, last)
        mask = in_n[:, None]
        x_mask = in_t[None, :]
        if not EVEN:
            mask = mask & (kk < inputs)[None, :]
            x_mask = x_mask & (kk < inputs)[:, None]
        w = tl.load(rows + kk[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_columns + kk[:, None], mask=x_mask, other=0.0)
        scale = tl.load(scale_row + block)
        x_scale = tl.load(x_scale_ptr + block * x_scale_stride + t, mask=in_t, other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        y += tl.dot(w, x) * (scale * x_scale)[None, :]

    mask = in_n[:, None] & (t < num_tokens)[None, :]
    at = t.to(tl.int64)[None, :] * outputs + n[:, None]
    if SHARES > 1:
        span = num_tokens * outputs  # SHARES * T * N stays below 2**31
        counter = counters_ptr + tl.program_id(0)
        if not arrives_last(y, partial_ptr + share * span + at, mask, counter, SHARES):
            return
        y = sum_of_shares(partial_ptr + at, span, mask, SHARES)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=mask)


def tiled_block(
    x: QuantizedTokens, weight: Tensor, scale: Tensor, bias: Tensor | None, tile: BlockTile
) -> Tensor:
    """The product for many tokens with an explicit tile."""
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    assert BLOCK % tile.block_n == 0
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=weight.device)
    grid = triton.cdiv(tokens, tile.block_m) * triton.cdiv(outputs, tile.block_n)
    _tiled_block_kernel[(grid,)](
        x.values,
        x.scale,
        weight,
        scale,
        bias,
        out,
        tokens,
        x.scale.stride(0),
        outputs,
        inputs,
        EVEN=inputs % BLOCK == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK=BLOCK,
        GROUP_M=8,
        STAGES=tile.num_stages,
        UPCAST=upcast_dots(x.values.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(weight.device),
    )
    return out


@triton.jit(do_not_specialize=["num_tokens", "x_scale_stride"])
def _tiled_block_kernel(
    x_ptr,  # (T, K)
    x_scale_ptr,  # (K / BLOCK, T) float32
    weight_ptr,  # (N, K)
    scale_ptr,  # (N / BLOCK, K / BLOCK) float32
    bias_ptr,  # (N,) or None
    out_ptr,  # (T, N)
    num_tokens,
    x_scale_stride,
    outputs,
    inputs,
    EVEN: tl.constexpr,  # inputs are whole blocks
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # divides BLOCK
    BLOCK: tl.constexpr,
    GROUP_M: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    # Tiles of GROUP_M rows of tiles run together, so that weights are read from the L2 cache.
    tiles_m = tl.cdiv(num_tokens, BLOCK_M)
    tiles_n = tl.cdiv(outputs, BLOCK_N)
    pid = tl.program_id(0)
    group = pid // (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + pid % (GROUP_M * tiles_n) % height
    tile_n = pid % (GROUP_M * tiles_n) // height
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows outside repeat the last one: loads need no masks, and stores leave them out.
    safe_m = tl.minimum(m, num_tokens - 1)
    safe_n = tl.minimum(n, outputs - 1)
    k = tl.arange(0, BLOCK)
    blocks = tl.cdiv(inputs, BLOCK)
    x_at = x_ptr + safe_m.to(tl.int64)[:, None] * inputs + k[None, :]
    w_at = weight_ptr + safe_n.to(tl.int64)[None, :] * inputs + k[:, None]
    scale_row = scale_ptr + (tile_n * BLOCK_N // BLOCK) * blocks
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    allow_consumers(PDL)
    wait_for_producers(PDL)
    for block in tl.range(0, blocks, num_stages=STAGES):
        if EVEN:
            x = tl.load(x_at)
            w = tl.load(w_at)
        else:
            in_k = block * BLOCK + k < inputs
            x = tl.load(x_at, mask=in_k[None, :], other=0.0)
            w = tl.load(w_at, mask=in_k[:, None], other=0.0)
        x_scale = tl.load(x_scale_ptr + block * x_scale_stride + safe_m)
        scale = tl.load(scale_row + block)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        acc += tl.dot(x, w) * (x_scale * scale)[:, None]
        x_at += BLOCK
        w_at += BLOCK
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + safe_n).to(tl.float32)[None, :]
    to = out_ptr + m.to(tl.int64)[:, None] * outputs + n[None, :]
    mask = (m < num_tokens)[:, None] & (n < outputs)[None, :]
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=mask)
