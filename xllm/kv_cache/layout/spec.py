"""What one layer keeps per token, and which layers keep it alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

CacheKind = Literal["full", "sliding_window"]


class CacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache of one attention layer.

    ``window`` w (sliding_window only): the query at position p sees the keys p-w+1 .. p.

    Raises:
        ValueError: a size is below 1, or kind and window contradict each other.
    """

    kind: CacheKind
    block_size: int  # tokens per block
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int
    window: int | None = None  # tokens

    def __post_init__(self) -> None:
        for name in ("block_size", "num_kv_heads", "head_dim", "dtype_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kind == "sliding_window":
            if self.window is None or self.window < 1:
                raise ValueError(f"window must be at least 1 for sliding_window, got {self.window}")
        elif self.window is not None:
            raise ValueError(f"window must be None for {self.kind}, got {self.window}")


class CacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of equal spec that share one block table: block ``i`` exists in each of them.

    ``num_blocks`` counts block 0, the padding block that is never handed out; 0 while unsized.
    """

    spec: CacheSpec
    layers: tuple[int, ...]
    num_blocks: int = 0

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers of the group."""
        return bytes_per_block(self.spec) * len(self.layers)


def first_full_group(groups: Sequence[CacheGroup]) -> int | None:
    """Index of the first group without a window, whose rows keep their blocks in place."""
    full = (index for index, group in enumerate(groups) if group.spec.window is None)
    return next(full, None)


def bytes_per_block(spec: CacheSpec) -> int:
    """Bytes of one block (keys and values) in one layer."""
    return 2 * spec.block_size * spec.num_kv_heads * spec.head_dim * spec.dtype_bytes
