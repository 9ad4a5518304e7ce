"""8-bit float products of many tokens: activations are quantized per token as they come."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import allow_consumers, pdl_options, wait_for_producers

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
_UNIT = 16  # the library's product wants both widths in multiples of it


def fits_library(x: Tensor, weight: Tensor) -> bool:
    """Whether ``linear_fp8`` takes these shapes and this device."""
    widths = weight.shape[0] % _UNIT == 0 and weight.shape[1] % _UNIT == 0
    return x.is_cuda and x.dtype == torch.bfloat16 and widths


def linear_fp8(
    values: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None
) -> Tensor:
    """values (T, K) with scale (T,) times weight (N, K) with scale (N,) -> (T, N) bfloat16."""
    return torch._scaled_mm(
        values,
        weight.t(),
        scale_a=x_scale[:, None],
        scale_b=scale[None, :],
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (T, K) -> float8 (T, K) and float32 scales (T,): ``x[t] ~= values[t] * scale[t]``."""
    tokens, width = x.shape
    assert x.stride(1) == 1
    values = torch.empty((tokens, width), dtype=FP8, device=x.device)
    scale = torch.empty(tokens, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    if tokens:
        _quantize_tokens_kernel[(tokens,)](
            x,
            values,
            scale,
            width,
            x.stride(0),
            BLOCK=block,
            MAX=FP8_MAX,
            num_warps=min(max(block // 1024, 1), 16),
            **pdl_options(x.device),
        )
    return values, scale


@triton.jit
def _quantize_tokens_kernel(
    x_ptr,  # (T, K)
    values_ptr,  # (T, K) float8
    scale_ptr,  # (T,) float32
    width,
    x_stride,
    BLOCK: tl.constexpr,
    MAX: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    wait_for_producers(PDL)
    allow_consumers(PDL)
    x = tl.load(x_ptr + token * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(x), axis=0)
    scale = tl.where(peak > 0.0, peak / MAX, 1.0)
    tl.store(scale_ptr + token, scale)
    y = tl.clamp(x / scale, -MAX, MAX)
    tl.store(values_ptr + token * width + columns, y.to(values_ptr.dtype.element_ty), mask=inside)
