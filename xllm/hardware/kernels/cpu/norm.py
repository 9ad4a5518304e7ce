"""RMS norm on the CPU."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import DTYPES, entry

_rms_norm = entry("xllm_rms_norm")
# x, residual, weight, out, tokens, hidden, eps, offset, dtype
_pack = struct.Struct("=6q2dq").pack


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, into: Any = None
) -> Tensor:
    """See ``ops.rms_norm``."""
    dtype = DTYPES.get(x.dtype)
    if dtype is None or not x.is_contiguous():
        return reference.rms_norm(x, weight, eps, offset)
    out = torch.empty_like(x)
    hidden = x.shape[-1]
    _rms_norm(
        _pack(
            *(x.data_ptr(), 0, weight.data_ptr(), out.data_ptr()),
            *(x.numel() // hidden, hidden, eps, offset, dtype),
        )
    )
    return out


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.fused_add_rms_norm``."""
    dtype = DTYPES.get(x.dtype)
    if dtype is None:
        return reference.fused_add_rms_norm(x, residual, weight, eps, offset)
    out = torch.empty_like(x)
    tokens, hidden = x.shape
    _rms_norm(
        _pack(
            *(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr()),
            *(tokens, hidden, eps, offset, dtype),
        )
    )
    return out, residual
