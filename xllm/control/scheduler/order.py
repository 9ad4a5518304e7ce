"""The order in which a step names its decoding rows."""

from __future__ import annotations

import numpy as np

from xllm.control.scheduler.table import Rows
from xllm.core.utils.arrays import Int32Array

# Beyond, a device has many times more rows than it computes at once, and no order helps.
MAX_SORTED_ROWS = 512


class LongestFirst:
    """Puts the longest rows first, so that a device takes up the short ones while those still run,
    and is not left with one long row at the end.

    It is done here, not where a batch is packed: whatever follows a plan (outputs, masks, draws,
    shared prefixes) goes by the plan's order, so nothing has to be put back. Who is preempted first
    was decided before, by another order.

    Rows that decode together grow together: the order is found anew only for other rows.
    """

    def __init__(self) -> None:
        self._rows: Rows = np.zeros(0, np.intp)
        self._order: Rows = self._rows
        self._sorted: Rows = self._rows

    def sort(self, rows: Rows, known: Int32Array) -> tuple[Rows, Int32Array]:
        """``rows`` (N,) and their known tokens ``known`` (N,), by descending length.

        The same object ``rows`` means the same rows, and brings the same object back.
        """
        if not 1 < rows.size <= MAX_SORTED_ROWS:
            return rows, known
        if rows is not self._rows:
            self._rows = rows
            self._order = np.argsort(-known, kind="stable")
            self._sorted = rows[self._order]
        return self._sorted, known[self._order]
