"""RMS normalization, alone and fused with what comes before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.layers.target import Target


class Reader(Protocol):
    """A layer that may be the only one to read a norm's result."""

    @property
    def into(self) -> Any:
        """``into`` of the op that makes the layer's input; None if the layer wants it plain."""
        ...


class RMSNorm(nn.Module):
    """``x / rms(x) * (offset + weight)``, computed in float32. Gemma's offset is 1, else 0.

    Args:
        reader: the one layer that reads the result, which then comes as that layer wants it, or
            None. Owned by the caller. Experts have a router that reads it too.
    """

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        offset: float = 0.0,
        dtype: torch.dtype,
        reader: Reader | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self._reader = (reader,)  # in a tuple, so that it is no module of this one
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), False)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{prefix}.weight", Target(shape, self._load, "zeros" if self.offset else "ones")

    def after_load(self) -> None:
        pass

    @property
    def into(self) -> Any:
        """``into`` of the op that ends with this norm."""
        (reader,) = self._reader
        return None if reader is None else reader.into

    def forward(self, x: Tensor) -> Tokens:
        """(T, H) -> (T, H)."""
        return ops.rms_norm(x, self.weight, self.eps, self.offset, self.into)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tokens, Tensor]:
        """``residual += x`` in place; returns the normalized sum and the sum."""
        return ops.fused_add_rms_norm(x, residual, self.weight, self.eps, self.offset, self.into)

    def _load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)
