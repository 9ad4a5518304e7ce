"""RMS normalization, with or without a residual addition before it. One program per token."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.tokens import QuantizedTokens
from xllm.hardware.kernels.triton.fp8 import empty_tokens, scale_width, store_quantized
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    allow_consumers_of_few,
    pdl_options,
    wait_for_producers,
)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, into: Any = None
) -> Tensor | QuantizedTokens:
    """See ``ops.rms_norm``."""
    return _launch(x.contiguous(), None, weight, eps, offset, into)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tensor | QuantizedTokens, Tensor]:
    """See ``ops.fused_add_rms_norm``."""
    assert x.is_contiguous() and residual.is_contiguous()
    return _launch(x, residual, weight, eps, offset, into), residual


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float, into: Any
) -> Tensor | QuantizedTokens:
    """Norm of ``x``, or of the sum that ``residual`` takes, rounded to its dtype, in place."""
    hidden = x.shape[-1]
    tokens = x.numel() // hidden
    width = scale_width(into, tokens, x.dtype)
    out = empty_tokens(x, hidden, width) if width else torch.empty_like(x)
    if tokens:
        block = triton.next_power_of_2(hidden)
        _rms_norm_kernel[(tokens,)](
            x,
            residual,
            weight,
            out.values if isinstance(out, QuantizedTokens) else out,
            out.scale if isinstance(out, QuantizedTokens) else None,
            eps,
            offset,
            hidden,
            out.scale.stride(0) if isinstance(out, QuantizedTokens) else 0,
            WIDTH=min(width, block),
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 8),
            **pdl_options(x.device),
        )
    return out


@triton.jit(do_not_specialize=["scale_stride"])
def _rms_norm_kernel(
    x_ptr,  # (T, H)
    residual_ptr,  # (T, H) or None
    weight_ptr,  # (H,)
    out_ptr,  # (T, H)
    scale_ptr,  # (G, T) float32, or None: the output is not quantized
    eps,
    offset,
    hidden,
    scale_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    allow_consumers_of_few(tl.num_programs(0), PDL)
    wait_for_producers(PDL)
    token = tl.program_id(0).to(tl.int64)
    at = token * hidden + columns
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + at, rounded, mask=inside)
        x = rounded.to(tl.float32)
    allow_consumers(PDL)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
    y = x * scale * (weight + offset)
    if scale_ptr is not None:
        y = y.to(x_ptr.dtype.element_ty).to(tl.float32)
        store_quantized(y, 0, token, out_ptr, scale_ptr, hidden, scale_stride, WIDTH, BLOCK)
    else:
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
