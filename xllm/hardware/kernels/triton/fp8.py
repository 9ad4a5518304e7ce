"""8-bit floats: when activations are quantized and how, and the library's product of them.

Activations get a scale per token where weights have one per output, and one per token and 128
columns where weights have one per 128 x 128 block. The kernel that makes them quantizes them where
one product alone reads them (argument ``into`` of the ops); ``quantize_tokens`` does it apart.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from xllm.hardware.kernels.tokens import QuantizedTokens
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    allow_consumers_of_few,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.packed import PackedLinear

FP8 = torch.float8_e4m3fn
BLOCK = 128  # outputs and inputs of a weight that share a scale, columns of a token that do
MAX_STREAMED_FP8_TOKENS = 64
_UNIT = 16  # the library's product wants both widths in multiples of it, and rows of block scales


def scale_width(packed: Any, tokens: int, dtype: torch.dtype) -> int:
    """Columns of activations that share a scale in ``linear``; 0 where it takes them as they are.

    One token is not worth quantizing: its product is bound by the weight's bytes.

    Args:
        packed: ``into`` of ``ops``.
    """
    if (
        not isinstance(packed, PackedLinear)
        or packed.weight.dtype != FP8
        or dtype == torch.float32
        or tokens < 2
    ):
        return 0
    if packed.by_block:
        return BLOCK
    if tokens <= MAX_STREAMED_FP8_TOKENS or _fits_library(packed.weight, dtype):
        return packed.weight.shape[1]
    return 0


def _fits_library(weight: Tensor, dtype: torch.dtype) -> bool:
    widths = weight.shape[0] % _UNIT == 0 and weight.shape[1] % _UNIT == 0
    return weight.is_cuda and dtype == torch.bfloat16 and widths


def linear_fp8(
    x: QuantizedTokens, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """x (T, K) with a scale per token times weight (N, K) with scale (N,) -> (T, N) bfloat16."""
    return torch._scaled_mm(
        x.values,
        weight.t(),
        scale_a=x.scale.view(-1, 1),
        scale_b=scale[None, :],
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


@functools.cache
def library_takes_blocks(device: torch.device) -> bool:
    """Whether the library multiplies operands with block scales on the device: on Hopper, where
    PyTorch and cuBLAS have it. The first call tries, so it must not be in a graph capture."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    rows, outputs, inputs = 17 * _UNIT, 2 * BLOCK, 4 * BLOCK
    weight = torch.ones((outputs, inputs), device=device).to(FP8)
    scale = torch.ones((outputs // BLOCK, inputs // BLOCK), device=device)
    x = QuantizedTokens(
        torch.ones((rows, inputs), device=device).to(FP8),
        torch.ones((inputs // BLOCK, rows), device=device),
        torch.bfloat16,
    )
    try:
        return bool((linear_fp8_block(x, weight, scale) == inputs).all())
    except (AttributeError, RuntimeError, ValueError):
        return False


def fits_library_by_block(x: QuantizedTokens, weight: Tensor) -> bool:
    """Whether ``linear_fp8_block`` takes the operands."""
    outputs, inputs = weight.shape
    return (
        x.dtype == torch.bfloat16
        and x.scale.stride(0) % _UNIT == 0
        and outputs % BLOCK == 0
        and inputs % (4 * BLOCK) == 0  # rows of the weight's scales are whole 16 bytes
        and library_takes_blocks(weight.device)
    )


def linear_fp8_block(x: QuantizedTokens, weight: Tensor, scale: Tensor) -> Tensor:
    """x (T, K) with a scale per token and 128 columns times weight (N, K) with one per block
    (N / 128, K / 128) -> (T, N) bfloat16.

    It also multiplies the rows that ``empty_tokens`` adds, on whatever they hold.
    """
    runs, rows = x.scale.shape[0], x.scale.stride(0)
    tokens, inputs = x.shape
    return F.scaled_mm(
        x.values.as_strided((rows, inputs), (inputs, 1)),
        weight.t(),
        x.scale.as_strided((rows, runs), (1, rows)),
        F.ScalingType.BlockWise1x128,
        scale.t(),
        F.ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )[:tokens]


def empty_tokens(x: Tensor, inputs: int, width: int) -> QuantizedTokens:
    """Memory for ``x.shape[0]`` tokens of ``inputs`` values, ``width`` columns to a scale.

    Behind many tokens with block scales lie unused rows up to the multiple that the library wants.
    """
    tokens = rows = x.shape[0]
    if width == BLOCK and tokens > MAX_STREAMED_FP8_TOKENS:
        rows = triton.cdiv(tokens, _UNIT) * _UNIT
    values = torch.empty((rows, inputs), dtype=FP8, device=x.device)[:tokens]
    num_scales = triton.cdiv(inputs, width)
    scale = torch.empty((num_scales, rows), dtype=torch.float32, device=x.device)[:, :tokens]
    return QuantizedTokens(values, scale, x.dtype)


def quantize_tokens(x: Tensor, width: int) -> QuantizedTokens:
    """x (T, K), rows contiguous, with one scale per token and ``width`` columns."""
    tokens, inputs = x.shape
    assert x.stride(1) == 1
    out = empty_tokens(x, inputs, width)
    block = triton.next_power_of_2(inputs)
    if tokens:
        _quantize_tokens_kernel[(tokens,)](
            x,
            out.values,
            out.scale,
            inputs,
            x.stride(0),
            out.scale.stride(0),
            WIDTH=min(width, block),
            BLOCK=block,
            num_warps=min(max(block // 1024, 1), 16),
            **pdl_options(x.device),
        )
    return out


@triton.jit
def store_quantized(
    y,
    start,
    token,
    values_ptr,
    scale_ptr,
    inputs,
    scale_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Quantize and store ``y`` (BLOCK,) float32, one token's columns from ``start`` on.

    A NaN stays one, so that its row fails and is not answered from noise.
    Columns from ``inputs`` on must be 0 and are not stored. WIDTH columns share a scale: a part of
    BLOCK, or all ``inputs``, which the block then holds.
    """
    MAX: tl.constexpr = 448.0
    columns = start + tl.arange(0, BLOCK)
    if WIDTH * 2 > BLOCK:
        peak = tl.max(tl.abs(y), axis=0)
        scale = tl.where(peak > 0.0, peak / MAX, 1.0)
        tl.store(scale_ptr + token, scale)
        values = tl.clamp(y / scale, -MAX, MAX, propagate_nan=tl.PropagateNan.ALL)
    else:
        runs = tl.reshape(y, [BLOCK // WIDTH, WIDTH])
        peaks = tl.max(tl.abs(runs), axis=1)
        scales = tl.where(peaks > 0.0, peaks / MAX, 1.0)
        run = start // WIDTH + tl.arange(0, BLOCK // WIDTH)
        tl.store(scale_ptr + run * scale_stride + token, scales, mask=run * WIDTH < inputs)
        runs = tl.clamp(runs / scales[:, None], -MAX, MAX, propagate_nan=tl.PropagateNan.ALL)
        values = tl.reshape(runs, [BLOCK])
    at = values_ptr + token * inputs + columns
    tl.store(at, values.to(values_ptr.dtype.element_ty), mask=columns < inputs)


@triton.jit(do_not_specialize=["scale_stride"])
def _quantize_tokens_kernel(
    x_ptr,  # (T, K)
    values_ptr,  # (T, K) float8
    scale_ptr,  # (G, T) float32
    inputs,
    x_stride,
    scale_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    allow_consumers_of_few(tl.num_programs(0), PDL)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    x = tl.load(x_ptr + token * x_stride + columns, mask=columns < inputs, other=0.0)
    x = x.to(tl.float32)
    store_quantized(x, 0, token, values_ptr, scale_ptr, inputs, scale_stride, WIDTH, BLOCK)
