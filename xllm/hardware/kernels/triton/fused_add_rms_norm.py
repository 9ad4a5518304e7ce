"""Residual addition and the norm after it, in one launch."""

from __future__ import annotations

from torch import Tensor

from xllm.hardware.kernels.triton.rms_norm import launch_rms_norm


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See ``ops.fused_add_rms_norm``."""
    assert x.is_contiguous() and residual.is_contiguous()
    return launch_rms_norm(x, residual, weight, eps, offset), residual
