"""Where a checkpoint tensor goes: the meeting point of layers and weight loaders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A slot for one checkpoint tensor.

    ``load`` receives a tensor of ``shape`` in any float dtype, on any device, and keeps no
    reference to it; where ``scaled``, also a ``ScaledTensor``. With ``extra_rows``, a checkpoint
    may bring more rows (vocabulary padded for alignment); those beyond ``shape[0]`` are dropped.
    ``dummy`` says how to fill the slot without a checkpoint. An ``optional`` slot keeps its default
    where a checkpoint has nothing for it.
    """

    shape: tuple[int, ...]
    load: Callable[[Any], None]
    dummy: Literal["normal", "zeros", "ones"] = "normal"
    extra_rows: bool = False
    optional: bool = False
    scaled: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a checkpoint tensor of ``shape`` may be loaded here."""
        if self.extra_rows and len(shape) == len(self.shape):
            return shape[0] >= self.shape[0] and shape[1:] == self.shape[1:]
        if not self.shape:  # one number, which some formats store as a vector
            return math.prod(shape) == 1
        return shape == self.shape


@runtime_checkable
class Loadable(Protocol):
    """A layer that takes checkpoint tensors."""

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        """Names and slots, for a layer that the model holds at ``prefix``."""
        ...

    def after_load(self) -> None:
        """Called once when every target is filled: pack, and free what packing replaced."""
        ...
