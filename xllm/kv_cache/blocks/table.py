"""Block ids of every row in one cache group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm.core.utils.arrays import Int32Array

Rows = npt.NDArray[np.intp]


class BlockTable:
    """Row ``r`` holds ``ids[r, first[r] : end[r]]``.

    Index ``i`` keeps the tokens from ``i * block_size``, whatever ``first`` is.
    ``first`` rises above 0 in sliding-window groups only. ``capacity`` is ``end`` in tokens.
    """

    def __init__(self, num_rows: int, max_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self.ids = np.zeros((num_rows, max_blocks), np.int32)
        self.first = np.zeros(num_rows, np.int32)
        self.end = np.zeros(num_rows, np.int32)
        self.capacity = np.zeros(num_rows, np.int32)

    def start(self, row: int, first: int) -> None:
        """An empty row whose next block has index ``first``."""
        assert self.end[row] == 0
        self.first[row] = self.end[row] = first
        self.capacity[row] = first * self._block_size

    def append(self, row: int, blocks: Int32Array | list[int]) -> None:
        """Append blocks to one row."""
        end = int(self.end[row])
        self.ids[row, end : end + len(blocks)] = blocks
        self.end[row] = end + len(blocks)
        self.capacity[row] = (end + len(blocks)) * self._block_size

    def append_each(self, rows: Rows, blocks: Int32Array) -> Int32Array:
        """Append one block to each of distinct rows; the indexes written, (N,) int32."""
        starts: Int32Array = self.end[rows]
        self.ids[rows, starts] = blocks
        self.end[rows] = starts + 1
        self.capacity[rows] += self._block_size
        return starts

    def live(self, row: int) -> Int32Array:
        """The blocks that the row holds, in token order (a view)."""
        return self.ids[row, self.first[row] : self.end[row]]

    def drop_before(self, row: int, index: int) -> Int32Array:
        """Give up the blocks before ``index``; returns them."""
        first = int(self.first[row])
        self.first[row] = index
        return self.ids[row, first:index].copy()

    def clear(self, row: int) -> Int32Array:
        """Empty the row; returns the blocks that it held."""
        blocks = self.live(row).copy()
        self.first[row] = self.end[row] = self.capacity[row] = 0
        return blocks

    def counts(self, num_blocks: int) -> npt.NDArray[np.int64]:
        """(num_blocks,) how many rows hold each block."""
        held = [self.live(row) for row in np.flatnonzero(self.end).tolist()]
        return (
            np.bincount(np.concatenate(held), minlength=num_blocks)
            if held
            else np.zeros(num_blocks, np.int64)
        )
