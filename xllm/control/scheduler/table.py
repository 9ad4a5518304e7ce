"""Per-row facts of running sequences, as NumPy columns indexed by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm.control.scheduler.sequence import Sequence, Status
from xllm.core.utils.arrays import BoolArray, Int32Array

Rows = npt.NDArray[np.intp]
_NO_ROWS: Rows = np.zeros(0, np.intp)
_NO_FREED: Int32Array = np.zeros(0, np.int32)


class RowTable:
    """The running sequences.

    A row is *live* from its start until its sequence finishes, is aborted or is preempted. Steps
    in flight may still use it then: it is *retiring* until they have been committed, and only
    after that free for another sequence. Known tokens include those that were sampled by a step
    in flight and have not reached the host.
    """

    def __init__(self, num_rows: int, max_model_len: int, vocab_size: int) -> None:
        self.num_rows = num_rows
        # Never touched rows cost no memory: the kernel commits zero pages on first write.
        self.token_ids = np.zeros((num_rows, max_model_len), np.int32)
        self.num_known = np.zeros(num_rows, np.int32)
        self.num_computed = np.zeros(num_rows, np.int32)  # by the steps scheduled so far
        self.num_seen = np.zeros(num_rows, np.int32)  # known tokens that are in token_ids
        self.max_total = np.zeros(num_rows, np.int32)
        self.in_flight = np.zeros(num_rows, np.int32)  # steps scheduled and not committed
        self.live = np.zeros(num_rows, np.bool_)
        self.decoding = np.zeros(num_rows, np.bool_)  # live, and its known tokens are scheduled
        self.handles = np.zeros(num_rows, np.int64)
        self.choices = np.zeros(num_rows, np.int32)
        self.priorities = np.zeros(num_rows, np.int64)
        self.arrivals = np.zeros(num_rows, np.int64)
        self.adapters = np.zeros(num_rows, np.int32)  # stays until the row starts again
        self.stop_counts = np.zeros(vocab_size, np.int32)  # live rows that a token would stop
        self.sequences: list[Sequence | None] = [None] * num_rows
        self.num_live = 0
        self._free = list(range(num_rows - 1, -1, -1))
        self._freed: list[int] = []
        self._decode_order: Rows | None = _NO_ROWS
        self.decode_version = 0  # changes whenever a row begins or ceases to decode

    # --- rows come and go ------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Rows that can be started."""
        return len(self._free)

    def peek_free(self) -> int:
        """The row that ``start`` takes next."""
        return self._free[-1]

    def start(self, sequence: Sequence, num_cached: int) -> int:
        """Give a waiting sequence a row; ``num_cached`` of its tokens need no computing."""
        row = self._free.pop()
        tokens = sequence.tokens
        assert tokens is not None and not self.live[row] and not self.in_flight[row]
        self.token_ids[row, : len(tokens)] = tokens
        self.num_known[row] = self.num_seen[row] = len(tokens)
        self.num_computed[row] = num_cached
        self.max_total[row] = sequence.max_total
        self.handles[row] = sequence.handle
        self.choices[row] = sequence.choice
        self.priorities[row] = sequence.priority
        self.arrivals[row] = sequence.arrival
        self.adapters[row] = sequence.state.request.adapter
        self._count_stops(sequence, 1)
        self.live[row] = True
        self.num_live += 1
        self.sequences[row] = sequence
        sequence.row, sequence.tokens, sequence.status = row, None, Status.RUNNING
        return row

    def begin_decoding(self, row: int) -> None:
        """All known tokens of the row are scheduled: from here on it takes one token a step."""
        self.decoding[row] = True
        self._decode_order = None
        self.decode_version += 1

    def leave(self, sequence: Sequence) -> int:
        """The sequence gives up its row, which then retires; returns the row."""
        row = sequence.row
        self._count_stops(sequence, -1)
        self.live[row] = False
        self.num_live -= 1
        if self.decoding[row]:
            self.decoding[row] = False
            self._decode_order = None
            self.decode_version += 1
        self.sequences[row] = None
        sequence.row = -1
        return row

    def release(self, row: int) -> None:
        """A retiring row that no step uses any more is free again."""
        assert not self.live[row] and self.in_flight[row] == 0
        self._free.append(row)
        self._freed.append(row)

    def take_freed(self) -> Int32Array:
        """Rows released since the last call."""
        if not self._freed:
            return _NO_FREED
        freed = np.array(self._freed, np.int32)
        self._freed.clear()
        return freed

    def _count_stops(self, sequence: Sequence, step: int) -> None:
        vocab_size = self.stop_counts.size
        for token in set(sequence.state.request.stop_token_ids):
            if 0 <= token < vocab_size:
                self.stop_counts[token] += step

    # --- order -----------------------------------------------------------------------------

    def decode_order(self) -> Rows:
        """Decoding rows by priority and arrival. Borrowed: the same array until a row changes."""
        if self._decode_order is None:
            self._decode_order = self._sorted(np.flatnonzero(self.decoding))
        return self._decode_order

    def ending(self) -> BoolArray:
        """(num_rows,) live rows whose last step is in flight."""
        last_token = self.num_seen < self.num_known  # sampled and on its way
        scored = self.num_computed == self.num_known  # nothing to sample
        at_end = self.num_known >= self.max_total
        mask: BoolArray = self.live & at_end & (last_token | scored)
        return mask

    def preemptible(self) -> Rows:
        """Live rows that do not end with the steps in flight, by priority and arrival."""
        return self._sorted(np.flatnonzero(self.live & ~self.ending()))

    def _sorted(self, rows: Rows) -> Rows:
        return rows[np.lexsort((self.arrivals[rows], self.priorities[rows]))]

    def check(self) -> None:
        """Assert that the columns, the sequences and the free rows agree."""
        live = np.flatnonzero(self.live).tolist()
        assert self.num_live == len(live)
        assert live == [row for row, seq in enumerate(self.sequences) if seq is not None]
        for row in live:
            sequence = self.sequences[row]
            assert sequence is not None and sequence.row == row
            assert sequence.status is Status.RUNNING and sequence.tokens is None
        assert len(set(self._free)) == len(self._free)
        assert not self.live[self._free].any() and not self.in_flight[self._free].any()
        assert not (self.decoding & ~self.live).any()
        rows = np.flatnonzero(self.live)
        assert (self.num_computed[rows] <= self.num_known[rows]).all()
        assert (self.num_seen[rows] <= self.num_known[rows]).all()
        assert (self.num_known[rows] <= self.max_total[rows]).all()
        stops = np.zeros_like(self.stop_counts)
        for row in live:
            sequence = self.sequences[row]
            assert sequence is not None
            assert (self.handles[row], self.choices[row]) == (sequence.handle, sequence.choice)
            known = {t for t in sequence.state.request.stop_token_ids if 0 <= t < stops.size}
            stops[list(known)] += 1
        assert (stops == self.stop_counts).all()
        order = self.decode_order()
        assert sorted(order.tolist()) == np.flatnonzero(self.decoding).tolist()
