"""Layer normalization, as encoders use it."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xllm.modeling.layers.target import Target


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias``, (T, H) -> (T, H)."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), False)
        self.bias = nn.Parameter(torch.empty(size, dtype=dtype), False)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{prefix}.weight", Target(shape, functools.partial(_copy, self.weight), "ones")
        yield f"{prefix}.bias", Target(shape, functools.partial(_copy, self.bias), "zeros")

    def after_load(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def _copy(parameter: Tensor, stored: Tensor) -> None:
    parameter.copy_(stored)
