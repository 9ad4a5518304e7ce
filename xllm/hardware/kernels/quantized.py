"""Activations in 8 bits: what an op passes to the one product that reads its result."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizedTokens:
    """T tokens of K values in G runs of columns: ``x[t, k] ~= values[t, k] * scale[run of k, t]``.

    Made by the ops with an argument ``into``, read by ``linear`` and ``gated_linear``.
    """

    values: Tensor  # (T, K) float8_e4m3fn
    # (G, T) float32, T contiguous: G = 1 is one scale per token, else runs have 128 columns. The
    # stride of G is the number of rows that ``values`` has in memory, T or a few more.
    scale: Tensor
    dtype: torch.dtype  # of what was quantized, and of the product

    @property
    def shape(self) -> torch.Size:
        """(T, K)."""
        return self.values.shape
