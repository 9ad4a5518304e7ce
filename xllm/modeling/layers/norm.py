"""RMS normalization, alone and fused with the residual addition before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.quantized import QuantizedTokens
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.target import Target


class RMSNorm(nn.Module):
    """``x / rms(x) * (offset + weight)``, computed in float32. Gemma's offset is 1, else 0."""

    def __init__(self, size: int, eps: float, *, offset: float = 0.0, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), False)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{prefix}.weight", Target(shape, self._load, "zeros" if self.offset else "ones")

    def _load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)

    def after_load(self) -> None:
        pass

    def forward(self, x: Tensor, reader: Linear | None = None) -> Tensor | QuantizedTokens:
        """(T, H) -> (T, H), as ``reader`` wants it if nothing else reads it."""
        into = None if reader is None else reader.into
        return ops.rms_norm(x, self.weight, self.eps, self.offset, into)

    def add(self, x: Tensor, residual: Tensor, reader: Linear | None = None) -> tuple[Any, Tensor]:
        """``residual += x`` in place; returns the normalized sum, for ``reader``, and the sum."""
        into = None if reader is None else reader.into
        return ops.fused_add_rms_norm(x, residual, self.weight, self.eps, self.offset, into)
