"""Weights of a product as the Triton kernels read them."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class PackedLinear:
    """Row-major weight (N, K) in the model's dtype, or 8 bits with float32 scales: one per output,
    or a matrix of one per block."""

    weight: Tensor
    scale: Tensor | None = None

    @property
    def out_features(self) -> int:
        """Outputs N."""
        return self.weight.shape[0]

    @property
    def by_block(self) -> bool:
        """Whether blocks have scales."""
        return self.scale is not None and self.scale.dim() == 2
