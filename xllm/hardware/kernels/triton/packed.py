"""Weights of products as the Triton kernels read them."""

from __future__ import annotations

import dataclasses

from torch import Tensor

HALF = 8


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


@dataclasses.dataclass(frozen=True, slots=True)
class PackedExperts:
    """Stacked weights, and biases or None.

    Rows of ``gate_up`` and its bias: HALF of the gate, the HALF of up that they meet, and so on.
    One tile of rows then has both halves of its outputs.
    """

    gate_up: Tensor  # (E, 2I, H)
    down: Tensor  # (E, H, I)
    gate_up_bias: Tensor | None = None  # (E, 2I)
    down_bias: Tensor | None = None  # (E, H)
