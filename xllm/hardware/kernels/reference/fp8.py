"""Activations in 8 bits, quantized as they come."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from xllm.hardware.kernels.tokens import QuantizedTokens

_MAX = 448.0


def quantize_tokens(x: Tensor, width: int) -> QuantizedTokens:
    """x (T, K) with one scale per token and ``width`` columns: the largest value becomes 448.

    Zeros get scale 1. The last run of columns may be shorter.
    """
    tokens, inputs = x.shape
    runs = F.pad(x.float(), (0, -inputs % width)).view(tokens, -1, width)
    scale = runs.abs().amax(dim=2) / _MAX
    scale = torch.where(scale > 0, scale, 1.0)
    values = (runs / scale[:, :, None]).clamp(-_MAX, _MAX).to(torch.float8_e4m3fn)
    return QuantizedTokens(values.flatten(1)[:, :inputs], scale.T.contiguous(), x.dtype)


def dequantize_tokens(x: QuantizedTokens, width: int) -> Tensor:
    """The numbers that ``x`` stands for, (T, K) float32."""
    scale = x.scale.T.repeat_interleave(width, dim=1)[:, : x.values.shape[1]]
    return x.values.float() * scale
