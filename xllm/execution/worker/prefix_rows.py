"""Where the rows of a batch share leading blocks, as its graph wants to be told."""

from __future__ import annotations

import numpy as np

from xllm.core.messages.worker import SharedPrefixes
from xllm.core.utils.arrays import Int32Array
from xllm.execution.executor.runners.decode_memory import PrefixRows
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, PREFIX_UNIT


class PrefixPlacer:
    """Turns rows into places in the batch, and keeps the last answer for steady steps."""

    def __init__(self, max_rows: int) -> None:
        self._place = np.zeros(max_rows, np.int32)
        self._last: SharedPrefixes | None = None
        self._placed: PrefixRows | None = None

    def place(self, rows: Int32Array, shared: SharedPrefixes) -> PrefixRows | None:
        """The batch of ``rows`` (S,) whose prefixes are ``shared``; None if none is long enough.

        The same object ``shared`` means the same ``rows``.
        """
        if shared is not self._last:
            self._last, self._placed = shared, self._build(rows, shared)
        return self._placed

    def _build(self, rows: Int32Array, shared: SharedPrefixes) -> PrefixRows | None:
        self._place[rows] = np.arange(rows.size, dtype=np.int32)
        places = self._place[shared.rows]
        lens = np.zeros(rows.size, np.int32)
        lines = []
        end = 0
        for count, tokens in zip(shared.counts.tolist(), shared.num_tokens.tolist(), strict=True):
            members = places[end : end + count]
            end += count
            whole = tokens // PREFIX_UNIT * PREFIX_UNIT
            if whole:
                lens[members] = whole
                padded = np.full(-(-count // LINE_ROWS) * LINE_ROWS, -1, np.int32)
                padded[:count] = members
                lines.append(padded.reshape(-1, LINE_ROWS))
        return PrefixRows(lens, np.concatenate(lines)) if lines else None
