"""Gated activation: act(gate) * up."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import allow_consumers, pdl_options, wait_for_producers

KINDS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
_BLOCK = 1024


def act_and_mul(gate_up: Tensor, activation: str) -> Tensor:
    """See ``ops.act_and_mul``."""
    if activation not in KINDS:
        raise ValueError(f"activation must be silu, gelu or gelu_tanh, got {activation!r}")
    tokens, width = gate_up.shape
    half = width // 2
    out = gate_up.new_empty((tokens, half))
    if tokens:
        assert gate_up.is_contiguous()
        _act_and_mul_kernel[(tokens, triton.cdiv(half, _BLOCK))](
            gate_up,
            out,
            half,
            KIND=KINDS[activation],
            BLOCK=_BLOCK,
            num_warps=4,
            **pdl_options(gate_up.device),
        )
    return out


@triton.jit
def activate(x, KIND: tl.constexpr):
    """silu (0), gelu by tanh (1), exact gelu (2) of a float32 tile."""
    if KIND == 0:
        return x * tl.sigmoid(x)
    if KIND == 1:  # 0.5 (1 + tanh u) = sigmoid(2 u)
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _act_and_mul_kernel(
    gate_up_ptr,  # (T, 2 * I)
    out_ptr,  # (T, I)
    half,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < half
    wait_for_producers(PDL)
    gate = tl.load(gate_up_ptr + token * 2 * half + columns, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + token * 2 * half + half + columns, mask=inside, other=0.0)
    allow_consumers(PDL)
    y = activate(gate.to(tl.float32), KIND) * up.to(tl.float32)
    tl.store(out_ptr + token * half + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
