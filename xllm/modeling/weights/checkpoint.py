"""What a checkpoint format implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from torch import Tensor

from xllm.modeling.quantization.base import ScaledTensor

Progress = Callable[[int, int], None]  # bytes done, bytes in total


class Checkpoint(Protocol):
    """Named float tensors, read in the order that suits the storage."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names, as a Hugging Face checkpoint of the family spells them, and shapes."""
        ...

    def num_bytes(self, name: str) -> int:
        """Stored size of a tensor."""
        ...

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor | ScaledTensor]]:
        """Read tensors. Each is borrowed until the next is read: memory may be reused.

        Only ``ScaledCheckpoint`` makes ``ScaledTensor``s.
        """
        ...
