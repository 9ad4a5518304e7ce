"""The blocks of one cache group: a stack of free ids and a reference count per block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm.core.utils.arrays import Int32Array
from xllm.kv_cache.prefix import PrefixCache


class BlockPool:
    """Hands out block ids ``1 .. num_blocks-1``; block 0 is padding.

    Every block but 0 is in exactly one place: free (on the stack), unlocked (unused, but its
    content is remembered by the prefix cache) or referenced. Only the first two can be allocated,
    the stack first.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self._cache = cache
        self._stack = np.arange(num_blocks - 1, 0, -1, dtype=np.int32)
        self._top = num_blocks - 1
        self.references = np.zeros(num_blocks, np.int32)  # rows that hold each block
        self.num_usable = num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out."""
        return self._top + self._cache.num_unlocked

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self.num_usable - self.num_free

    def allocate(self, count: int) -> Int32Array:
        """Take ``count`` blocks, each with one reference. The caller checked ``num_free``."""
        missing = count - self._top
        if missing > 0:
            self._push(np.array(self._cache.evict(missing), np.int32))
        self._top -= count
        taken = self._stack[self._top : self._top + count].copy()
        self.references[taken] = 1
        return taken

    def share(self, blocks: list[int]) -> None:
        """Add a reference to distinct blocks that the prefix cache remembers."""
        shared = np.array(blocks, np.int32)
        self._cache.lock(shared[self.references[shared] == 0].tolist())
        self.references[shared] += 1

    def release(self, blocks: Int32Array) -> None:
        """Drop one reference of each block; ``blocks`` are distinct, in token order.

        Of the blocks that nobody uses then, remembered ones stay with the prefix cache. Later
        blocks are unlocked first: a prefix must outlive what continues it.
        """
        left = self.references[blocks] - 1
        assert left.size == 0 or left.min() >= 0, "a block was released twice"
        self.references[blocks] = left
        unused = blocks[left == 0]
        if len(self._cache):
            unused = np.array(self._cache.unlock(unused[::-1].tolist()), np.int32)
        self._push(unused)

    def num_sole(self, blocks: Int32Array) -> int:
        """How many of ``blocks`` would be allocatable after ``release(blocks)``."""
        return int(np.count_nonzero(self.references[blocks] == 1))

    def drop_unlocked(self) -> None:
        """Forget the content of every block that nobody uses."""
        self._push(np.array(self._cache.evict(self._cache.num_unlocked), np.int32))

    def _push(self, blocks: Int32Array) -> None:
        self._stack[self._top : self._top + blocks.size] = blocks
        self._top += blocks.size

    def check(self, held: npt.NDArray[np.int64]) -> None:
        """Assert that the ledgers add up.

        Args:
            held: (num_blocks,) how many tables hold each block.
        """
        self._cache.check()
        assert (self.references == held).all(), "references differ from the block tables"
        free = self._stack[: self._top].tolist()
        unlocked = self._cache.unlocked_blocks()
        used = np.flatnonzero(self.references).tolist()
        places = free + unlocked + used
        assert len(places) == len(set(places)) == self.num_usable, "a block is lost or doubled"
        assert 0 not in places, "the padding block was handed out"
        assert not any(block in self._cache for block in free), "a free block is remembered"
