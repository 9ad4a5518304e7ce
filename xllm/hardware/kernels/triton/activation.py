"""Gated activation: act(gate) * up."""

from __future__ import annotations

from typing import Any

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

KINDS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "clamped_swiglu": 3}
_BLOCK = 1024  # columns of a program, unless a scale spans more


def act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor | QuantizedTokens:
    """See ``ops.act_and_mul``."""
    if activation not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, got {activation!r}")
    tokens, width = gate_up.shape
    half = width // 2
    width = scale_width(into, tokens, gate_up.dtype)
    out = empty_tokens(gate_up, half, width) if width else gate_up.new_empty((tokens, half))
    block = triton.next_power_of_2(half) if width == half else _BLOCK
    if tokens:
        assert gate_up.is_contiguous()
        _act_and_mul_kernel[(tokens, triton.cdiv(half, block))](
            gate_up,
            out.values if isinstance(out, QuantizedTokens) else out,
            out.scale if isinstance(out, QuantizedTokens) else None,
            half,
            out.scale.stride(0) if isinstance(out, QuantizedTokens) else 0,
            KIND=KINDS[activation],
            WIDTH=width,
            BLOCK=block,
            num_warps=min(max(block // 256, 1), 32),
            **pdl_options(gate_up.device),
        )
    return out


@triton.jit
def gated(x, up, KIND: tl.constexpr):
    """silu (0), gelu by tanh (1), exact gelu (2) of ``x`` times ``up``, both float32 tiles; or the
    clamped SwiGLU (3) of both."""
    if KIND == 0:
        return x * tl.sigmoid(x) * up
    if KIND == 1:  # 0.5 (1 + tanh u) = sigmoid(2 u)
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)) * up
    if KIND == 3:  # by comparison, which lets NaN through
        x = tl.where(x > 7.0, 7.0, x)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        return x * tl.sigmoid(1.702 * x) * (up + 1.0)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)) * up


@triton.jit(do_not_specialize=["scale_stride"])
def _act_and_mul_kernel(
    gate_up_ptr,  # (T, 2 * I)
    out_ptr,  # (T, I)
    scale_ptr,  # (G, T) float32, or None: the output is not quantized
    half,
    scale_stride,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    columns = start + tl.arange(0, BLOCK)
    inside = columns < half
    allow_consumers_of_few(tl.num_programs(0), PDL)
    wait_for_producers(PDL)
    gate = tl.load(gate_up_ptr + token * 2 * half + columns, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + token * 2 * half + half + columns, mask=inside, other=0.0)
    allow_consumers(PDL)
    y = gated(gate.to(tl.float32), up.to(tl.float32), KIND)
    if scale_ptr is not None:
        y = y.to(gate_up_ptr.dtype.element_ty).to(tl.float32)
        store_quantized(y, start, token, out_ptr, scale_ptr, half, scale_stride, WIDTH, BLOCK)
    else:
        tl.store(out_ptr + token * half + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
