"""Matrix product with a float weight, or one of 8 bits with scales."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

SCALED_DTYPES = (torch.int8, torch.float8_e4m3fn)
BLOCK = 128  # outputs and inputs that share a scale, where blocks have scales


@dataclasses.dataclass(frozen=True, slots=True)
class PackedLinear:
    """Row-major weight (N, K) in a float dtype, or 8 bits with a float32 scale per output or
    block."""

    weight: Tensor
    scale: Tensor | None = None

    @property
    def out_features(self) -> int:
        """N."""
        return self.weight.shape[0]


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> PackedLinear:
    """See ``ops.pack_linear``."""
    if (weight.dtype in SCALED_DTYPES) != (scale is not None):
        raise ValueError(f"scale must come with an 8-bit weight and only with it: {weight.dtype}")
    return PackedLinear(weight, scale)


def linear(x: Tensor, packed: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """See ``ops.linear``."""
    if packed.scale is None:
        return F.linear(x, packed.weight, bias)
    if packed.scale.dim() == 2:
        out = F.linear(x.float(), dequantize_weight(packed.weight, packed.scale))
    else:
        out = F.linear(x.float(), packed.weight.float()) * packed.scale
    if bias is not None:
        out += bias
    return out.to(x.dtype)


def dequantize_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """Weight (N, K) of 8 bits times its scales, (N,) or (ceil(N / 128), ceil(K / 128)); float32."""
    if scale.dim() == 1:
        return weight.float() * scale[:, None]
    out = weight.float()
    scale = scale.float()
    for rows, part in zip(out.split(BLOCK), scale, strict=True):
        whole = rows.shape[1] // BLOCK  # the last block may be narrower
        rows[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).mul_(part[:whole, None])
        rows[:, whole * BLOCK :].mul_(part[-1])
    return out
