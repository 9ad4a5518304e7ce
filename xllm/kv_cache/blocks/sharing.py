"""Which rows begin with the same blocks, so that a device may read those once for all of them."""

from __future__ import annotations

import numpy as np

from xllm.core.messages.worker import MAX_SHARED_PREFIXES, SharedPrefixes
from xllm.kv_cache.blocks.group import GroupBlocks
from xllm.kv_cache.blocks.table import Rows


def find_shared_prefixes(
    group: GroupBlocks, rows: Rows, *, min_rows: int, min_saved_tokens: int
) -> SharedPrefixes | None:
    """The most rewarding disjoint groups of ``rows`` with equal leading blocks.

    A block has one place in one prefix, so rows that hold the same block at some index hold the
    same blocks before it. What a group saves is (rows - 1) * tokens: the tokens that are not read.

    Args:
        group: a cache group without a window.
        rows: (N,) rows that decode.
        min_rows: rows of a worthwhile group.
        min_saved_tokens: what it must save.
    """
    table, references = group.table, group.pool.references
    rows = rows[references[table.ids[rows, 0]] >= min_rows]
    if rows.size < min_rows:
        return None
    ends = table.end[rows]
    width = int(ends.max())
    ids = table.ids[rows, :width]
    index = np.arange(width)
    # References of rows that do not decode count too: an upper bound, corrected once chosen.
    saved = (references[ids] - 1) * (index + 1)
    saved[index >= ends[:, None]] = 0
    found: list[tuple[Rows, int]] = []
    while len(found) < MAX_SHARED_PREFIXES:
        row, column = np.unravel_index(int(saved.argmax()), saved.shape)
        num_tokens = (int(column) + 1) * group.block_size
        if saved[row, column] * group.block_size < min_saved_tokens:
            break
        mates = (ids[:, column] == ids[row, column]) & (column < ends) & (saved[:, 0] >= 0)
        count = int(np.count_nonzero(mates))
        if count >= min_rows and (count - 1) * num_tokens >= min_saved_tokens:
            found.append((rows[mates], num_tokens))
        saved[mates] = -1
    if not found:
        return None
    return SharedPrefixes(
        rows=np.concatenate([members for members, _ in found]).astype(np.int32),
        counts=np.array([members.size for members, _ in found], np.int32),
        num_tokens=np.array([tokens for _, tokens in found], np.int32),
    )
