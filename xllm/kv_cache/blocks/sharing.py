"""Which rows begin with the same blocks, so that a device may read those once for all of them."""

from __future__ import annotations

import numpy as np

from xllm.core.messages.worker import MAX_SHARED_PREFIXES, SharedPrefixes
from xllm.kv_cache.blocks.group import GroupBlocks
from xllm.kv_cache.blocks.table import Rows

_NUM_COLUMNS = 64  # of block tables that are looked at together


def find_shared_prefixes(
    group: GroupBlocks, rows: Rows, *, min_rows: int, min_saved_tokens: int
) -> SharedPrefixes | None:
    """The most rewarding disjoint groups of ``rows`` with equal leading blocks.

    A block has one place in one prefix, so what rows hold before a block that they share is equal,
    too. What a group saves is (rows - 1) * tokens: the tokens that are not read.

    Args:
        group: a cache group without a window.
        rows: (N,) rows that decode.
        min_rows: rows of a worthwhile group, at least 2.
        min_saved_tokens: what it must save.
    """
    table, references = group.table, group.pool.references
    rows = rows[references[table.ids[rows, 0]] >= min_rows]
    if rows.size < min_rows:
        return None
    # Rows that do not decode have references, too: these only tell where to look.
    parts = []
    for start in range(0, int(table.end[rows].max()), _NUM_COLUMNS):
        columns = np.arange(start, min(start + _NUM_COLUMNS, table.ids.shape[1]))
        part = references[table.ids[rows, columns[0] : columns[-1] + 1]] >= min_rows
        part &= columns < table.end[rows, None]
        if not part.any():
            break
        parts.append(part)
    shared = np.concatenate(parts, axis=1)
    ids = table.ids[rows, : shared.shape[1]]
    num_tokens = (np.arange(shared.shape[1]) + 1) * group.block_size
    found: list[tuple[Rows, int]] = []
    while len(found) < MAX_SHARED_PREFIXES and rows.size >= min_rows:
        holders = np.bincount(ids[shared], minlength=references.size)[ids]
        saved = np.where(shared & (holders >= min_rows), (holders - 1) * num_tokens, 0)
        row, column = np.unravel_index(int(saved.argmax()), saved.shape)
        if saved[row, column] < max(1, min_saved_tokens):
            break
        mates = shared[:, column] & (ids[:, column] == ids[row, column])
        found.append((rows[mates], int(num_tokens[column])))
        rows, ids, shared = rows[~mates], ids[~mates], shared[~mates]
    if not found:
        return None
    return SharedPrefixes(
        rows=np.concatenate([members for members, _ in found]).astype(np.int32),
        counts=np.array([members.size for members, _ in found], np.int32),
        num_tokens=np.array([tokens for _, tokens in found], np.int32),
    )
