"""What was appended to the block tables since the last plan."""

from __future__ import annotations

import numpy as np

from xllm.core.messages.worker import AppendedBlocks
from xllm.core.utils.arrays import Int32Array

_NONE = np.zeros(0, np.int32)
NOTHING_APPENDED = AppendedBlocks(_NONE, _NONE, _NONE, _NONE)


class AppendLog:
    """Collects the ``AppendedBlocks`` of one cache group."""

    def __init__(self, num_rows: int) -> None:
        self._ones = np.ones(num_rows, np.int32)  # sliced instead of built: plans are read only
        self._entries: list[AppendedBlocks] = []

    def add(self, row: int, start: int, blocks: Int32Array | list[int]) -> None:
        """``blocks`` went to indexes ``start ..`` of one row."""
        if len(blocks):
            self._entries.append(
                AppendedBlocks(
                    np.array([row], np.int32),
                    np.array([start], np.int32),
                    np.array([len(blocks)], np.int32),
                    np.asarray(blocks, np.int32),
                )
            )

    def add_each(self, rows: Int32Array, starts: Int32Array, blocks: Int32Array) -> None:
        """One block went to index ``starts[i]`` of ``rows[i]``."""
        self._entries.append(AppendedBlocks(rows, starts, self._ones[: rows.size], blocks))

    def drop(self, row: int) -> None:
        """Take back what was noted for a row that leaves before the plan is made."""
        for index, entry in enumerate(self._entries):
            keep = entry.rows != row
            if not keep.all():
                self._entries[index] = AppendedBlocks(
                    entry.rows[keep],
                    entry.starts[keep],
                    entry.counts[keep],
                    entry.block_ids[np.repeat(keep, entry.counts)],
                )

    def take(self) -> AppendedBlocks:
        """Everything noted since the last call."""
        entries, self._entries = self._entries, []
        if not entries:
            return NOTHING_APPENDED
        if len(entries) == 1:
            return entries[0]
        return AppendedBlocks(
            np.concatenate([entry.rows for entry in entries]),
            np.concatenate([entry.starts for entry in entries]),
            np.concatenate([entry.counts for entry in entries]),
            np.concatenate([entry.block_ids for entry in entries]),
        )
