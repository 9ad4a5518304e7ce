"""What an op passes to the one product that reads its result, where that is not a plain tensor.

Made by the ops with an argument ``into``, read by the products: ``linear`` and those made of it,
and, of norms, ``route`` and the experts.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedTokens:
    """T tokens of K values, in G runs of columns each:
    ``x[t, k] ~= values[t, k] * scale[run of k, t]``."""

    values: Tensor  # (T, K) float8_e4m3fn
    # (G, T) float32, T contiguous: G = 1 is one scale per token, else runs have 128 columns. The
    # stride of G is the number of rows that ``values`` has in memory, T or a few more.
    scale: Tensor
    dtype: torch.dtype  # of what was quantized, and of the product

    @property
    def shape(self) -> torch.Size:
        """(T, K)."""
        return self.values.shape


@dataclasses.dataclass(frozen=True, slots=True)
class UnscaledToken:
    """One token of K values whose RMS norm lacks its last step:
    ``x = values / sqrt(sum(squares) / K + eps)``."""

    values: Tensor  # (1, K), times the norm's weight already
    squares: Tensor  # (P,) float32, parts of the sum of squares of what is normalized
    eps: float

    @property
    def shape(self) -> torch.Size:
        """(1, K)."""
        return self.values.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the values, and of the product."""
        return self.values.dtype


Tokens = Tensor | QuantizedTokens | UnscaledToken
