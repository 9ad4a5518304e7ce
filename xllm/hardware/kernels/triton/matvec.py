"""Matrix-vector products: those of one token, which read every weight once.

Grid: (tile of rows,). A program owns whole rows; it requests their first tile, their scales and
their biases before it waits for its input, as ``linear`` explains. Gates and the outputs that they
gate are two tiles, which one reduction sums.

FP8 weights are read as 64-bit words of eight, so that a thread has the activations of its weights
without an exchange. Each is widened and multiplied in float32.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.fp8 import BLOCK, FP8
from xllm.hardware.kernels.triton.launch import (
    INTERPRETED,
    allow_consumers,
    num_multiprocessors,
    pdl_options,
    wait_for_producers,
)

_WORD = 8  # FP8 weights


@dataclasses.dataclass(frozen=True, slots=True)
class MatvecTile:
    """Tuning of one product."""

    rows: int  # of weights, those of gates and of what they gate together
    block_k: int  # inputs at a time
    num_warps: int = 4
    num_stages: int = 1


def matvec(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    activation: str | None = None,
    tile: MatvecTile | None = None,
) -> Tensor:
    """``x`` (1, K) times weight (N, K) -> (1, N), or with gates (1, N / 2).

    Args:
        scale: float32 (N,), or (ceil(N / 128), ceil(K / 128)), of weights in 8 bits.
        bias: (N,).
        activation: of the gates, which are the first half of the outputs; one of ``KINDS``.
        tile: by rule unless given.
    """
    outputs, inputs = weight.shape
    by_block = scale is not None and scale.dim() == 2
    words = weight.dtype == FP8 and x.element_size() == 2 and inputs % _WORD == 0
    halves = 1 if activation is None else 2
    if tile is None:
        tile = choose_tile(weight, words, by_block and halves == 2, num_multiprocessors(x.device))
    rows = tile.rows // halves
    outputs //= halves
    # Rows of a tile share their scales.
    assert not by_block or (BLOCK % rows == 0 and (halves == 1 or outputs % rows == 0))
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    kernel, unit = _matvec_kernel, 1
    if words:
        kernel, unit = _words_kernel, _WORD
        x, weight = x.view(torch.int64), weight.view(torch.int64)
    kernel[(triton.cdiv(outputs, rows),)](
        x,
        weight,
        scale,
        bias,
        out,
        outputs,
        inputs // unit,
        KIND=-1 if activation is None else KINDS[activation],
        UNIT=unit,
        RUN=BLOCK // unit if by_block else 0,
        ROWS=rows,
        BLOCK_K=tile.block_k // unit,
        TILES=triton.cdiv(inputs, tile.block_k),
        EVEN=inputs % tile.block_k == 0,
        STAGES=tile.num_stages,
        INTERPRETED=INTERPRETED,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )
    return out


def choose_tile(weight: Tensor, words: bool, single_rows: bool, num_sms: int) -> MatvecTile:
    """The tile of a product, from measurements on an H200.

    Args:
        words: weights are read as words.
        single_rows: gates have scales by block: a tile has one of them.
    """
    outputs, inputs = weight.shape
    row = triton.next_power_of_2(inputs)
    if words:
        if single_rows or outputs > 64 * num_sms:  # several waves: small programs
            return MatvecTile(2, min(row, 4096), num_warps=2)
        if inputs > 4096:
            return MatvecTile(8, 1024, num_stages=4)
        # One wave: as much of each row as the registers of all programs hold.
        return MatvecTile(8, row if outputs <= 32 * num_sms else min(row, 2048))
    if inputs <= 4096 and outputs * inputs < 1 << 24 and outputs <= 40 * num_sms:
        # Whole rows, so that all of a small weight is requested before the wait. Two warps
        # where four would not all be resident, or would own a part of a row beyond its end.
        few = outputs > 32 * num_sms or inputs < row
        return MatvecTile(2, row, num_warps=2 if few else 4)
    if single_rows:
        return MatvecTile(2, min(row, 2048))
    if outputs <= 1024 and inputs > 1024:
        return MatvecTile(4, 2048, num_stages=3)
    if inputs <= 1024 and outputs <= 1 << 14:
        return MatvecTile(4, 1024, num_stages=3)
    return MatvecTile(8, 1024, num_stages=4 if outputs > 4096 else 3)


@triton.jit
def _byte(words, i: tl.constexpr):
    return (words >> (8 * i)).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def _widen(weights, UNIT: tl.constexpr, INTERPRETED: tl.constexpr):
    """Tuple of the ``UNIT`` weights in each element, as float32."""
    if UNIT == 1:
        parts = (weights.to(tl.float32),)
    elif INTERPRETED:  # there is no assembler
        parts = (
            _byte(weights, 0),
            _byte(weights, 1),
            _byte(weights, 2),
            _byte(weights, 3),
            _byte(weights, 4),
            _byte(weights, 5),
            _byte(weights, 6),
            _byte(weights, 7),
        )
    else:  # two at a time, through float16, which holds them exactly
        parts = tl.inline_asm_elementwise(
            """{
            .reg .b16 p0, p1, p2, p3, low, high;
            .reg .b32 pair;
            mov.b64 {p0, p1, p2, p3}, $8;
            cvt.rn.f16x2.e4m3x2 pair, p0; mov.b32 {low, high}, pair;
            cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;
            cvt.rn.f16x2.e4m3x2 pair, p1; mov.b32 {low, high}, pair;
            cvt.f32.f16 $2, low; cvt.f32.f16 $3, high;
            cvt.rn.f16x2.e4m3x2 pair, p2; mov.b32 {low, high}, pair;
            cvt.f32.f16 $4, low; cvt.f32.f16 $5, high;
            cvt.rn.f16x2.e4m3x2 pair, p3; mov.b32 {low, high}, pair;
            cvt.f32.f16 $6, low; cvt.f32.f16 $7, high;
            }""",
            "=f,=f,=f,=f,=f,=f,=f,=f,l",
            [weights],
            dtype=(tl.float32,) * 8,
            is_pure=True,
            pack=1,
        )
    return parts


@triton.jit
def _quarter(words, i: tl.constexpr, dtype: tl.constexpr):
    return (words >> (16 * i)).to(tl.uint16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def _load_x(x_ptr, k, width, dtype: tl.constexpr, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """Tuple of the ``UNIT`` activations that meet each element ``k`` of a row, as float32."""
    mask = None if EVEN else k < width
    other = None if EVEN else 0.0
    if UNIT == 1:
        parts = (tl.load(x_ptr + k, mask=mask, other=other).to(tl.float32),)
    else:
        first = tl.load(x_ptr + 2 * k, mask=mask, other=other)
        second = tl.load(x_ptr + 2 * k + 1, mask=mask, other=other)
        parts = (
            _quarter(first, 0, dtype),
            _quarter(first, 1, dtype),
            _quarter(first, 2, dtype),
            _quarter(first, 3, dtype),
            _quarter(second, 0, dtype),
            _quarter(second, 1, dtype),
            _quarter(second, 2, dtype),
            _quarter(second, 3, dtype),
        )
    return parts


@triton.jit
def _load_rows(rows, k, width, FIRST: tl.constexpr, EVEN: tl.constexpr):
    """(ROWS, BLOCK_K) elements, none of which is read again."""
    mask = None if EVEN else (k < width)[None, :]
    other = None if EVEN else 0.0
    cache: tl.constexpr = ".cg" if FIRST else ""
    policy: tl.constexpr = "" if FIRST else "evict_first"
    at = rows + k[None, :]
    return tl.load(at, mask=mask, other=other, cache_modifier=cache, eviction_policy=policy)


@triton.jit
def _multiply(weights, x, UNIT: tl.constexpr, INTERPRETED: tl.constexpr):
    """(ROWS, BLOCK_K) products, those of an element summed."""
    w = _widen(weights, UNIT, INTERPRETED)
    y = w[0] * x[0][None, :]
    for i in tl.static_range(1, UNIT):
        y += w[i] * x[i][None, :]
    return y


def _kernel(
    x_ptr,  # (K,), of words (K / 4,)
    weight_ptr,  # (N, K), of words (N, K / 8)
    scale_ptr,  # float32 (N,) or, with RUN, (N / 128, K / 128); or None
    bias_ptr,  # (N,) or None
    out_ptr,  # (outputs,)
    outputs,  # N, gated N / 2
    width,  # elements of a row
    KIND: tl.constexpr,  # of the activation of gates, -1 without them
    UNIT: tl.constexpr,  # weights of an element
    RUN: tl.constexpr,  # elements that share a scale, 0 for a row
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK_K: tl.constexpr,  # elements
    TILES: tl.constexpr,  # of BLOCK_K in a row
    EVEN: tl.constexpr,  # they end where the row does
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
    PDL: tl.constexpr,
):
    GATED: tl.constexpr = KIND >= 0
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    first_n = tl.program_id(0) * ROWS
    n = first_n + tl.arange(0, ROWS)
    safe_n = tl.minimum(n, outputs - 1)
    k = tl.arange(0, BLOCK_K)
    rows = weight_ptr + safe_n.to(tl.int64)[:, None] * width
    up_rows = rows + outputs.to(tl.int64) * width if GATED else rows
    allow_consumers(PDL)
    # Constants may be read before the producers are done: the memory stays busy.
    w = _load_rows(rows, k, width, True, EVEN)
    if GATED:
        up_w = _load_rows(up_rows, k, width, True, EVEN)
    if RUN > 0:
        runs = tl.cdiv(width, RUN)
        scale_row = scale_ptr + first_n // (RUN * UNIT) * runs
        up_scale_row = scale_ptr + (outputs + first_n) // (RUN * UNIT) * runs
        # Past the end of a row weights are zero, which any scale leaves zero.
        run = tl.minimum(k // RUN, runs - 1)
        scale = tl.load(scale_row + run)[None, :]
        if GATED:
            up_scale = tl.load(up_scale_row + run)[None, :]
    elif scale_ptr is not None:
        scale = tl.load(scale_ptr + safe_n)
        if GATED:
            up_scale = tl.load(scale_ptr + outputs + safe_n)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + safe_n).to(tl.float32)
        if GATED:
            up_bias = tl.load(bias_ptr + outputs + safe_n).to(tl.float32)
    wait_for_producers(PDL)

    x = _load_x(x_ptr, k, width, dtype, UNIT, EVEN)
    y = _multiply(w, x, UNIT, INTERPRETED)
    if RUN > 0:
        y *= scale
    if GATED:
        up = _multiply(up_w, x, UNIT, INTERPRETED)
        if RUN > 0:
            up *= up_scale
    for at in tl.range(BLOCK_K, TILES * BLOCK_K, BLOCK_K, num_stages=STAGES):
        kk = at + k
        x = _load_x(x_ptr, kk, width, dtype, UNIT, EVEN)
        part = _multiply(_load_rows(rows, kk, width, False, EVEN), x, UNIT, INTERPRETED)
        if RUN > 0:
            run = tl.minimum(kk // RUN, runs - 1)
            part *= tl.load(scale_row + run)[None, :]
        y += part
        if GATED:
            part = _multiply(_load_rows(up_rows, kk, width, False, EVEN), x, UNIT, INTERPRETED)
            if RUN > 0:
                part *= tl.load(up_scale_row + run)[None, :]
            up += part

    if GATED:
        y, up = tl.split(tl.sum(tl.join(y, up), axis=1))
    else:
        y = tl.sum(y, axis=1)
    if RUN == 0 and scale_ptr is not None:
        y *= scale
        if GATED:
            up *= up_scale
    if bias_ptr is not None:
        y += bias
        if GATED:
            up += up_bias
    if GATED:  # rounded as the product alone would be
        y = gated(y.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32), KIND)
    tl.store(out_ptr + n, y.to(dtype), mask=n < outputs)


_matvec_kernel = triton.jit(_kernel)
# A thread loads one word at a time: the layout in which it loads the activations.
_words_kernel = triton.jit(_kernel, do_not_specialize_on_alignment=["weight_ptr"])
