"""RMS normalization, alone and fused with the residual addition before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, into: Any = None
) -> Tensor:
    """See ``ops.rms_norm``."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * (weight.float() + offset)).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.fused_add_rms_norm``."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, offset), residual
