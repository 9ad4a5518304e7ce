"""What a quantization format implements."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.tokens import Tokens


@dataclasses.dataclass(frozen=True, slots=True)
class ScaledTensor:
    """A matrix as a checkpoint stores it: float8_e4m3fn values (N, K), borrowed, and float32
    scales, (N,) or (ceil(N / 128), ceil(K / 128))."""

    values: Tensor
    scale: Tensor

    @property
    def by_block(self) -> bool:
        """Whether blocks have scales."""
        return self.scale.dim() == 2

    def dequantize(self) -> Tensor:
        """The numbers it stands for, (N, K) float32, on the default device."""
        device = torch.get_default_device()
        return reference.dequantize_weight(self.values.to(device), self.scale.to(device))


class LinearLayer(Protocol):
    """The layer that a method serves: K input and N output features, and what it keeps there."""

    in_features: int
    out_features: int
    dtype: torch.dtype
    # Checkpoint name and rows of each part of a merged projection, in order; None: there is one.
    shards: tuple[tuple[str, int], ...] | None
    method: QuantMethod
    stored_as: QuantMethod  # of ``fp8_stored``, while loading
    # Written by the method only. The first two are there until they are packed.
    weight: Tensor
    scale: Tensor
    packed: Any

    @property
    def bias(self) -> Tensor | None:
        """(N,), in ``dtype``."""
        ...


class QuantMethod(Protocol):
    """The stored form of linear weights. Stateless: one instance serves all layers of a model.

    Order of calls per layer: ``create_weights``, ``load_rows`` until every row is filled,
    ``after_load``, then ``apply`` any number of times.
    """

    takes_scaled: bool  # ``load_rows`` takes ``ScaledTensor`` too

    def create_weights(self, layer: LinearLayer) -> None:
        """Allocate the layer's storage as attributes of ``layer``."""
        ...

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor) -> None:
        """Fill output rows ``start ..`` from ``weight`` (rows, K), of any float dtype."""
        ...

    def after_load(self, layer: LinearLayer) -> None:
        """Pack for the platform into ``layer.packed`` and free the unpacked storage."""
        ...

    def apply(self, layer: LinearLayer, x: Tokens) -> Tensor:
        """``x (T, K) -> (T, N)`` including the bias."""
        ...

    def for_head(self) -> QuantMethod:
        """The method of the language-model head: this one, or one that loses less."""
        ...

    def check_experts(self) -> None:
        """Whether models with experts can be loaded, whose stacked weights stay in their dtype.

        Raises:
            ValueError: they cannot: most of such a model would be left unquantized.
        """
        ...
