"""One cache group: its pool, its table, and when its rows next publish or release a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from xllm.core.utils.arrays import Int32Array
from xllm.kv_cache.blocks.appended import AppendLog
from xllm.kv_cache.blocks.pool import BlockPool
from xllm.kv_cache.blocks.table import BlockTable, Rows
from xllm.kv_cache.layout import CacheGroup, CacheSpec
from xllm.kv_cache.layout.sizing import blocks_for
from xllm.kv_cache.prefix import BlockKeys, PrefixCache
from xllm.kv_cache.prefix.keys import TOKEN_DTYPE, keys_at
from xllm.kv_cache.prefix.match import first_visible_block

NEVER = np.iinfo(np.int32).max


class GroupBlocks:
    """Blocks of one cache group. ``BlockManager`` keeps several of them in step.

    ``publish_at[r]`` and ``release_at[r]`` are the numbers of computed tokens at which row ``r``
    fills a block that the prefix cache should learn, and at which its first block leaves the
    window; ``NEVER`` where that cannot happen.
    """

    def __init__(self, group: CacheGroup, num_rows: int, max_tokens: int) -> None:
        self.spec: CacheSpec = group.spec
        self.block_size = group.spec.block_size
        self.cache = PrefixCache(group.num_blocks)
        self.pool = BlockPool(group.num_blocks, self.cache)
        self.table = BlockTable(num_rows, blocks_for(max_tokens, self.block_size), self.block_size)
        self.publish_at = np.full(num_rows, NEVER, np.int32)
        self._num_published = np.zeros(num_rows, np.int32)  # index of the next block to publish
        self.release_at = np.full(num_rows, NEVER, np.int32)
        self.log = AppendLog(num_rows)
        self._offsets = np.arange(self.block_size)

    def start(self, row: int, first: int, shared: list[int], publish_limit: int) -> None:
        """Begin a row whose blocks ``first ..`` are the already locked ``shared`` ones."""
        self.table.start(row, first)
        self.table.append(row, shared)
        self.log.add(row, first, shared)
        self._num_published[row] = first + len(shared)
        at = (first + len(shared) + 1) * self.block_size
        self.publish_at[row] = at if at <= publish_limit else NEVER
        self._set_release(row)

    def missing(self, row: int, num_tokens: int) -> int:
        """Blocks that the row lacks to hold ``num_tokens``."""
        return max(0, blocks_for(num_tokens, self.block_size) - int(self.table.end[row]))

    def extend(self, row: int, num_blocks: int) -> None:
        """Append new blocks; the caller checked that the pool has them."""
        if num_blocks:
            blocks = self.pool.allocate(num_blocks)
            self.log.add(row, int(self.table.end[row]), blocks)
            self.table.append(row, blocks)

    def extend_each(self, rows: Rows) -> None:
        """Append one new block to each row."""
        blocks = self.pool.allocate(rows.size)
        starts = self.table.append_each(rows, blocks)
        self.log.add_each(rows.astype(np.int32), starts, blocks)

    def publish(
        self,
        rows: Rows,
        num_computed: Int32Array,
        limits: Int32Array,
        keys: Sequence[BlockKeys],
        token_ids: npt.NDArray[np.int32],
    ) -> None:
        """Let the prefix cache learn the full blocks of rows that are due.

        Args:
            rows: (N,) rows with ``num_computed >= publish_at``.
            num_computed: (N,) computed tokens of known id.
            limits: (N,) tokens after which blocks are not published.
            keys: of every row.
            token_ids: (num_rows, max_model_len) token table.
        """
        size, ids = self.block_size, self.table.ids
        starts = self._num_published[rows]
        ends = np.minimum(num_computed, limits) // size
        self._num_published[rows] = ends
        next_at = (ends + 1) * size
        next_at[next_at > limits] = NEVER
        self.publish_at[rows] = next_at
        many = ends - starts > 1
        if np.count_nonzero(many):  # prompts
            spans = (rows[many].tolist(), starts[many].tolist(), ends[many].tolist())
            for row, start, end in zip(*spans, strict=True):
                chain = keys[row].upto(end, size, token_ids[row])
                self.cache.insert(chain[start + 1 : end + 1], ids[row, start:end].tolist())
            rows, starts = rows[~many], starts[~many]
        flat, width = token_ids.reshape(-1), token_ids.shape[1]
        places = np.add.outer(rows * width + starts * size, self._offsets)
        raw = flat[places].astype(TOKEN_DTYPE, copy=False).tobytes()
        learned = keys_at([keys[row] for row in rows.tolist()], starts.tolist(), size, raw)
        self.cache.insert(learned, ids[rows, starts].tolist())

    def release_outside_window(self, row: int, num_computed: int) -> None:
        """Release the blocks that no token from ``num_computed`` on can see."""
        visible = first_visible_block(self.spec, num_computed)
        self.pool.release(self.table.drop_before(row, min(visible, int(self.table.end[row]))))
        self._set_release(row)

    def free(self, row: int) -> None:
        """Release everything that the row holds."""
        self.pool.release(self.table.clear(row))
        self.publish_at[row] = self.release_at[row] = NEVER
        self.log.drop(row)

    def check(self) -> None:
        """Assert that rows publish and release what they hold."""
        table = self.table
        assert (table.first <= table.end).all()
        assert (table.capacity == table.end * self.block_size).all()
        due = self.publish_at < NEVER
        assert (self.publish_at[due] == (self._num_published[due] + 1) * self.block_size).all()
        assert (self._num_published[due] >= table.first[due]).all()
        if self.spec.window is not None:
            leaves = (table.first + 1) * self.block_size + self.spec.window - 1
            assert (self.release_at == leaves)[table.end > 0].all()

    def _set_release(self, row: int) -> None:
        if self.spec.window is not None:
            leaves = (int(self.table.first[row]) + 1) * self.block_size + self.spec.window - 1
            self.release_at[row] = leaves
