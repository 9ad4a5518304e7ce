"""The persistent rows on the device: token ids and block tables.

A step plan names rows by index and carries only what changed. Lengths and prompt lengths are known
to whoever plans, so they stay on the host; what only the device may know, the newest sampled
tokens, lives here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from xllm.core.messages.worker import AppendedBlocks, NewRows
from xllm.core.utils.arrays import Int64Array
from xllm.execution.transfer import upload
from xllm.kv_cache.layout import CacheGroup
from xllm.kv_cache.storage import zeros_on_demand

_WIDTH_UNIT = 16  # Triton compiles a kernel apart for strides that are 1, and no multiples of 16


def table_width(num_tokens: int, block_size: int) -> int:
    """Columns of a block table for rows of that many tokens."""
    num_blocks = -(-num_tokens // block_size)
    return -(-num_blocks // _WIDTH_UNIT) * _WIDTH_UNIT


class Rows:
    """Token ids (rows, width) and one block table (rows, B) per cache group, all int32.

    Entries beyond a row's length are stale: of tokens never read, of block tables always valid
    block ids, 0 at first.
    """

    def __init__(
        self,
        max_rows: int,
        max_model_len: int,
        groups: Sequence[CacheGroup],
        device: torch.device,
    ) -> None:
        self._device = device
        self.block_sizes = [group.spec.block_size for group in groups]
        # One more column than the context: the last sampled token is written but never computed.
        self.token_ids = zeros_on_demand((max_rows, max_model_len + 1), torch.int32, device)
        self.block_tables = [
            zeros_on_demand((max_rows, table_width(max_model_len, block_size)), torch.int32, device)
            for block_size in self.block_sizes
        ]
        self.prompt_lens: Int64Array = np.zeros(max_rows, np.int64)

    def start(self, new: NewRows) -> None:
        """Write the known tokens of rows that start or resume."""
        self.prompt_lens[new.rows] = new.prompt_lens
        starts = np.zeros_like(new.num_tokens)
        self._scatter(self.token_ids, new.rows, starts, new.num_tokens, new.token_ids)

    def append_blocks(self, group: int, appended: AppendedBlocks) -> None:
        """Write new entries of block tables."""
        self._scatter(
            self.block_tables[group],
            appended.rows,
            appended.starts,
            appended.counts,
            appended.block_ids,
        )

    def _scatter(
        self,
        table: torch.Tensor,
        rows: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Entry i writes the next ``counts[i]`` of ``values`` at ``table[rows[i], starts[i]:]``."""
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        assert total == len(values), f"{len(values)} values for {total} entries"
        if not total:
            return
        first = rows.astype(np.int64) * table.shape[1] + starts - (ends - counts)
        flat = np.repeat(first, counts) + np.arange(total)
        # Arrays that came over a channel are read-only, which torch does not accept.
        values = np.require(values, np.int32, ("C", "W"))
        index, source = upload((flat, values), self._device)
        table.view(-1)[index] = source
