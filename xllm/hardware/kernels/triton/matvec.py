"""Matrix-vector products: those of one token, which read every weight once.

Grid: (tile of rows,). A program owns whole rows; it requests their first tile, their scales and
their biases before it waits for its input, as ``linear`` explains. Gates and the outputs that they
gate are two tiles, which one reduction sums.

An RMS norm between two products needs no kernel. The product before it adds its outputs to the
residual, multiplies the sums by the norm's weight and leaves the sum of squares of each program's
part; the product after it sums those beside its own rows and divides what comes out.

FP8 weights are read as 64-bit words of eight, so that a thread has the activations of its weights
without an exchange, in one load. Each is widened, exactly, and multiplied in float32.

Rows longer than a tile: with one stage the next tile is loaded into registers while one is
multiplied, with more stages through shared memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.fp8 import BLOCK, FP8
from xllm.hardware.kernels.triton.launch import (
    INTERPRETED,
    allow_consumers,
    num_multiprocessors,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.packed import PackedExperts, PackedLinear

_WORD = 8  # FP8 weights


@dataclasses.dataclass(frozen=True, slots=True)
class MatvecTile:
    """Tuning of one product."""

    rows: int  # of weights, those of gates and of what they gate together
    block_k: int  # inputs at a time
    num_warps: int = 4
    num_stages: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Norm:
    """The residual addition and the norm after a product."""

    residual: Tensor  # (1, N), contiguous, takes the sum
    weight: Tensor  # (N,)
    eps: float
    offset: float


def finishes_norm(into: Any, dtype: torch.dtype) -> bool:
    """Whether the reader of one token, ``into`` of the op that makes it, finishes its norm.

    Values without that last step can be too large for float16.
    """
    return isinstance(into, PackedLinear | PackedExperts) and dtype != torch.float16


def split_norm(x: Tensor | UnscaledToken) -> tuple[Tensor, Tensor | None, float]:
    """Values, squares and eps of a token, whose norm may be complete."""
    if isinstance(x, UnscaledToken):
        return x.values, x.squares, x.eps
    return x, None, 0.0


def matvec(
    x: Tensor | UnscaledToken,
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
    return _matvec(x, weight, scale, bias, activation, None, tile)[0]


def matvec_add_norm(
    x: Tensor | UnscaledToken,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    tile: MatvecTile | None = None,
) -> UnscaledToken:
    """The norm of ``norm.residual += matvec(x, weight, scale, bias)``, but for its last step."""
    values, squares = _matvec(x, weight, scale, bias, None, norm, tile)
    assert squares is not None
    return UnscaledToken(values, squares, norm.eps)


def _matvec(
    x: Tensor | UnscaledToken,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    norm: Norm | None,
    tile: MatvecTile | None,
) -> tuple[Tensor, Tensor | None]:
    """The result and, with ``norm``, sums of squares of the new residual by program."""
    x, squares, eps = split_norm(x)
    outputs, inputs = weight.shape
    assert x.stride(1) == 1
    by_block = scale is not None and scale.dim() == 2
    words = weight.dtype == FP8 and x.element_size() == 2 and inputs % _WORD == 0
    halves = 1 if activation is None else 2
    if tile is None:
        tile = choose_tile(outputs, inputs, words, by_block, num_multiprocessors(x.device))
    rows = tile.rows // halves
    outputs //= halves
    if by_block and halves == 2 and outputs % rows:
        rows = 1
    # Rows of a tile share their scales.
    assert not by_block or (BLOCK % rows == 0 and (halves == 1 or outputs % rows == 0))
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    programs = triton.cdiv(outputs, rows)
    new_squares = None
    if norm is not None:
        assert norm.residual.is_contiguous() and norm.residual.shape == out.shape
        new_squares = torch.empty(programs, dtype=torch.float32, device=x.device)
    kernel, unit = _matvec_kernel, 1
    if words:
        kernel, unit = _words_kernel, _WORD
        x, weight = x.view(torch.int64), weight.view(torch.int64)
    kernel[(programs,)](
        x,
        squares,
        weight,
        scale,
        bias,
        out,
        norm.residual if norm else None,
        norm.weight if norm else None,
        new_squares,
        eps,
        norm.offset if norm else 0.0,
        outputs,
        inputs // unit,
        KIND=-1 if activation is None else KINDS[activation],
        UNIT=unit,
        RUN=BLOCK // unit if by_block else 0,
        ROWS=rows,
        BLOCK_K=tile.block_k // unit,
        PARTS=0 if squares is None else squares.numel(),
        TILES=triton.cdiv(inputs, tile.block_k),
        EVEN=inputs % tile.block_k == 0,
        STAGES=tile.num_stages,
        INTERPRETED=INTERPRETED,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )
    return out, new_squares


def choose_tile(outputs: int, inputs: int, words: bool, by_block: bool, num_sms: int) -> MatvecTile:
    """The tile of a product, from measurements on an H200.

    Args:
        words: weights are read as words.
        by_block: scales are.
    """
    row = triton.next_power_of_2(inputs)
    if words:
        if not by_block and inputs <= 4096 and outputs > 32 * num_sms:
            if outputs <= 64 * num_sms:  # whole rows, all of them requested before the wait
                return MatvecTile(4, row)
            return MatvecTile(4, min(row, 2048), num_warps=2)
        return MatvecTile(8, min(row, 2048))
    if inputs <= 4096 and outputs * inputs < 1 << 24 and outputs <= 40 * num_sms:
        # Whole rows, so that all of a small weight is requested before the wait. Two warps
        # where four would not all be resident, or would own a part of a row beyond its end.
        if outputs > 32 * num_sms or inputs < row:
            return MatvecTile(2, row, num_warps=2)
        return MatvecTile(4 if outputs <= 16 * num_sms else 2, row)
    if outputs <= 1024 and inputs > 1024:
        return MatvecTile(4, 2048, num_stages=3)
    if inputs <= 1024 and outputs <= 1 << 14:
        return MatvecTile(4, 1024)
    if 1024 < inputs <= 4096:
        return MatvecTile(4, 1024, num_stages=4)
    return MatvecTile(8, 1024, num_stages=4 if outputs > 4096 else 3)


def _dot_of_words(widen: str) -> str:
    """PTX of $0 = dot product of eight FP8 weights, $1, with activations, $2 and $3, in float32.

    Weights are widened two at a time through float16, which holds them exactly. All of it is one
    block of assembly: where only the widening is one, a program takes up to an eighth more
    registers, so fewer of them load at the same time.

    Args:
        widen: of the two activations in ``{x}`` to ``c`` and ``d``.
    """
    lines = [
        ".reg .b16 w<4>, low, high; .reg .b32 x<4>, pair; .reg .f32 a, b, c, d, y;",
        "mov.b64 {w0, w1, w2, w3}, $1; mov.b64 {x0, x1}, $2; mov.b64 {x2, x3}, $3;",
    ]
    for i in range(4):
        lines += [
            f"cvt.rn.f16x2.e4m3x2 pair, w{i}; mov.b32 {{low, high}}, pair;",
            "cvt.f32.f16 a, low; cvt.f32.f16 b, high;",
            widen.format(x=f"x{i}"),
            "fma.rn.f32 y, a, c, y;" if i else "mul.rn.f32 y, a, c;",
            "fma.rn.f32 y, b, d, y;",
        ]
    return "\n".join(["{", *lines, "mov.f32 $0, y;", "}"])


_DOT_BFLOAT16 = tl.constexpr(
    _dot_of_words(
        "shl.b32 pair, {x}, 16; mov.b32 c, pair; and.b32 pair, {x}, 0xffff0000; mov.b32 d, pair;"
    )
)
_DOT_FLOAT16 = tl.constexpr(
    _dot_of_words("mov.b32 {{low, high}}, {x}; cvt.f32.f16 c, low; cvt.f32.f16 d, high;")
)


@triton.jit
def _dot(w, xa, xb, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """(ROWS, BLOCK_K) words of eight weights times two of four activations, float32."""
    if INTERPRETED:  # there is no assembler
        y = tl.zeros(w.shape, tl.float32)
        for i in tl.static_range(8):
            weight = (w >> (8 * i)).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
            x = ((xa if i < 4 else xb) >> (16 * (i % 4))).to(tl.uint16).to(dtype, bitcast=True)
            y += weight.to(tl.float32) * x.to(tl.float32)
    else:
        y = tl.inline_asm_elementwise(
            _DOT_BFLOAT16 if dtype == tl.bfloat16 else _DOT_FLOAT16,
            "=f,l,l,l",
            [w, xa, xb],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return y


@triton.jit
def _load_x(x_ptr, k, width, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """The activations that meet each element ``k`` of a row: (1, BLOCK_K), of words two."""
    mask = None if EVEN else k < width
    other = None if EVEN else 0.0
    if UNIT == 1:
        first = tl.load(x_ptr + k, mask=mask, other=other).to(tl.float32)
        second = first
    else:
        pairs = 2 * k[:, None] + tl.arange(0, 2)[None, :]
        mask = None if EVEN else pairs < 2 * width
        first, second = tl.split(tl.load(x_ptr + pairs, mask=mask, other=other))
    return first[None, :], second[None, :]


@triton.jit
def _load_rows(rows, k, width, EVEN: tl.constexpr):
    """(ROWS, BLOCK_K) elements, none of which is read again."""
    mask = None if EVEN else (k < width)[None, :]
    other = None if EVEN else 0.0
    return tl.load(rows + k[None, :], mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def _load_scales(scale_row, k, runs, RUN: tl.constexpr):
    """(1, BLOCK_K) scales of elements; nothing that is read where a row has one scale."""
    if RUN > 0:
        # Past the end of a row weights are zero, which any scale leaves zero.
        scales = tl.load(scale_row + tl.minimum(k // RUN, runs - 1))[None, :]
    else:
        scales = 1.0
    return scales


@triton.jit
def _multiply(
    w,
    scales,
    x,
    dtype: tl.constexpr,
    UNIT: tl.constexpr,
    RUN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """(ROWS, BLOCK_K) products, those of an element summed."""
    if UNIT == 1:
        y = w.to(tl.float32) * x[0]
    else:
        y = _dot(w, x[0], x[1], dtype, INTERPRETED)
    if RUN > 0:
        y *= scales
    return y


@triton.jit
def load_squares(squares_ptr, k, PARTS: tl.constexpr, BLOCK_K: tl.constexpr):
    """(BLOCK_K,) sums over the parts, beside the inputs ``k`` of the first tile."""
    squares = tl.load(squares_ptr + k, mask=k < PARTS, other=0.0)
    for at in tl.static_range(BLOCK_K, PARTS, BLOCK_K):
        squares += tl.load(squares_ptr + at + k, mask=at + k < PARTS, other=0.0)
    return squares


@triton.jit
def add_to_residual(y, residual, norm_weight, residual_ptr, squares_ptr, n, outputs):
    """Store ``residual + y`` and its sum of squares; return it times the norm's weight.

    ``y`` comes rounded as the product would be, and the sum is rounded as it would be.
    """
    new = (residual + y).to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + n, new, mask=n < outputs)
    y = new.to(tl.float32)
    part_of_sum = tl.sum(tl.where(n < outputs, y * y, 0.0), axis=0)
    tl.store(squares_ptr + tl.program_id(0), part_of_sum)
    return y * norm_weight


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def add_triples(a, b, c, d, e, f):
    return a + d, b + e, c + f


def _kernel(
    x_ptr,  # (K,), of words (K / 4,)
    squares_ptr,  # (PARTS,) float32, whose sum is that of the squares that scale x; or None
    weight_ptr,  # (N, K), of words (N, K / 8)
    scale_ptr,  # float32 (N,) or, with RUN, (N / 128, K / 128); or None
    bias_ptr,  # (N,) or None
    out_ptr,  # (outputs,)
    residual_ptr,  # (outputs,), which takes the sum whose norm is the output; or None
    norm_ptr,  # (outputs,) weight of that norm
    new_squares_ptr,  # float32, one of each program
    eps,  # of the norm that scales x
    offset,  # of the output's
    outputs,  # N, gated N / 2
    width,  # elements of a row
    KIND: tl.constexpr,  # of the activation of gates, -1 without them
    UNIT: tl.constexpr,  # weights of an element
    RUN: tl.constexpr,  # elements that share a scale, 0 for a row
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK_K: tl.constexpr,  # elements
    PARTS: tl.constexpr,
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
    allow_consumers(PDL)
    runs = tl.cdiv(width, RUN) if RUN > 0 else 0
    scale_row = scale_ptr
    up_scale_row = scale_ptr
    if RUN > 0:
        scale_row += first_n // (RUN * UNIT) * runs
        up_scale_row += (outputs + first_n) // (RUN * UNIT) * runs
    # Constants may be read before the producers are done: the memory stays busy.
    w = _load_rows(rows, k, width, EVEN)
    up_rows = rows + outputs.to(tl.int64) * width if GATED else rows
    up_w = _load_rows(up_rows, k, width, EVEN) if GATED else w
    scales = _load_scales(scale_row, k, runs, RUN)
    up_scales = _load_scales(up_scale_row, k, runs, RUN) if GATED else scales
    if RUN == 0 and scale_ptr is not None:
        scale = tl.load(scale_ptr + safe_n)
        if GATED:
            up_scale = tl.load(scale_ptr + outputs + safe_n)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + safe_n).to(tl.float32)
        if GATED:
            up_bias = tl.load(bias_ptr + outputs + safe_n).to(tl.float32)
    if norm_ptr is not None:
        norm_weight = tl.load(norm_ptr + safe_n).to(tl.float32) + offset
    wait_for_producers(PDL)
    if squares_ptr is not None:
        squares = load_squares(squares_ptr, k, PARTS, BLOCK_K)
        squares = tl.broadcast_to(squares[None, :], [ROWS, BLOCK_K])
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + safe_n).to(tl.float32)

    CARRIED: tl.constexpr = STAGES == 1 and TILES > 1
    if CARRIED:
        y = tl.zeros([ROWS, BLOCK_K], tl.float32)
        up = y
        for at in tl.range(BLOCK_K, TILES * BLOCK_K, BLOCK_K, num_stages=1):
            kk = at + k
            next_w = _load_rows(rows, kk, width, EVEN)
            next_scales = _load_scales(scale_row, kk, runs, RUN)
            x = _load_x(x_ptr, kk - BLOCK_K, width, UNIT, EVEN)
            y += _multiply(w, scales, x, dtype, UNIT, RUN, INTERPRETED)
            w, scales = next_w, next_scales
            if GATED:
                next_w = _load_rows(up_rows, kk, width, EVEN)
                next_scales = _load_scales(up_scale_row, kk, runs, RUN)
                up += _multiply(up_w, up_scales, x, dtype, UNIT, RUN, INTERPRETED)
                up_w, up_scales = next_w, next_scales
        k += (TILES - 1) * BLOCK_K
    x = _load_x(x_ptr, k, width, UNIT, EVEN)
    part = _multiply(w, scales, x, dtype, UNIT, RUN, INTERPRETED)
    y = y + part if CARRIED else part
    if GATED:
        part = _multiply(up_w, up_scales, x, dtype, UNIT, RUN, INTERPRETED)
        up = up + part if CARRIED else part
    if STAGES > 1:
        for at in tl.range(BLOCK_K, TILES * BLOCK_K, BLOCK_K, num_stages=STAGES):
            kk = at + k
            x = _load_x(x_ptr, kk, width, UNIT, EVEN)
            w = _load_rows(rows, kk, width, EVEN)
            scales = _load_scales(scale_row, kk, runs, RUN)
            y += _multiply(w, scales, x, dtype, UNIT, RUN, INTERPRETED)
            if GATED:
                w = _load_rows(up_rows, kk, width, EVEN)
                scales = _load_scales(up_scale_row, kk, runs, RUN)
                up += _multiply(w, scales, x, dtype, UNIT, RUN, INTERPRETED)

    if INTERPRETED:  # it takes minutes over tuples
        y = tl.sum(y, axis=1)
        if GATED:
            up = tl.sum(up, axis=1)
        if squares_ptr is not None:
            squares = tl.sum(squares, axis=1)
    elif GATED and squares_ptr is not None:
        y, up, squares = tl.reduce((y, up, squares), 1, add_triples)
    elif GATED:
        y, up = tl.reduce((y, up), 1, add_pairs)
    elif squares_ptr is not None:
        y, squares = tl.reduce((y, squares), 1, add_pairs)
    else:
        y = tl.sum(y, axis=1)
    if squares_ptr is not None:
        x_scale = 1.0 / tl.sqrt(squares / (width * UNIT) + eps)
        y *= x_scale
        if GATED:
            up *= x_scale
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
    if residual_ptr is not None:
        y = y.to(dtype).to(tl.float32)
        y = add_to_residual(y, residual, norm_weight, residual_ptr, new_squares_ptr, n, outputs)
    tl.store(out_ptr + n, y.to(dtype), mask=n < outputs)


_matvec_kernel = triton.jit(_kernel)
# A thread loads one word at a time: the layout in which it loads the activations.
_words_kernel = triton.jit(_kernel, do_not_specialize_on_alignment=["squares_ptr", "weight_ptr"])
