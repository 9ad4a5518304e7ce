"""Residual addition and the norm after it."""

from __future__ import annotations

from torch import Tensor

from xllm.hardware.kernels.reference.rms_norm import rms_norm


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See ``ops.fused_add_rms_norm``."""
    residual += x
    return rms_norm(residual, weight, eps, offset), residual
