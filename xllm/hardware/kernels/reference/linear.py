"""Linear layers over packed weights."""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight (N, K) as it is, with per-row scales when it is int8."""

    weight: Tensor
    scale: Tensor | None


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> PackedLinear:
    """See ``ops.pack_linear``."""
    return PackedLinear(weight, scale)


def linear(x: Tensor, packed: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """See ``ops.linear``."""
    weight = packed.weight
    if packed.scale is not None:
        weight = (weight.float() * packed.scale.float()[:, None]).to(x.dtype)
    return F.linear(x, weight, bias)
