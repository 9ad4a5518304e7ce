"""Building the columnar output batch of a step."""

from __future__ import annotations

import dataclasses

import numpy as np

from xllm.control.scheduler.state import Notices, SchedulerState
from xllm.control.scheduler.table import Rows
from xllm.core.messages.server import (
    LogprobColumns,
    OutputBatch,
    PooledColumns,
    PromptLogprobs,
)
from xllm.core.messages.worker import PooledRows, RowPromptLogprobs, SampledLogprobs
from xllm.core.utils.arrays import BoolArray, Int8Array, Int32Array


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens that count, one per row."""

    rows: Rows  # (M,)
    totals: Int32Array  # (M,) tokens of the row, this one included
    tokens: Int32Array  # (M,)
    kept: BoolArray | None  # which entries of the result these are; None: all


class OutputBuilder:
    """Turns sampled tokens and notices into ``OutputBatch``."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        num_rows = state.table.num_rows
        # Constant columns, sliced instead of built; receivers only read them.
        self._ones = np.ones(num_rows, np.int32)
        self._no_finish = np.zeros(num_rows, np.int8)
        self._no_stop = np.full(num_rows, -1, np.int32)
        self._prompt_logprobs: list[PromptLogprobs] = []
        self._pooled: PooledColumns | None = None

    def add_prompt_logprobs(self, entries: list[RowPromptLogprobs]) -> None:
        """Keep what was not sent yet: a prompt computed again brings its logprobs again."""
        for entry in entries:
            sequence = self._state.table.sequences[entry.row]
            if sequence is None or not sequence.wants_prompt_logprobs:
                continue
            request = sequence.state
            skip = request.next_prompt_logprob - entry.start
            assert skip >= 0, "prompt logprobs skip a position"
            if skip < len(entry.ranks):
                request.next_prompt_logprob = entry.start + len(entry.ranks)
                self._prompt_logprobs.append(
                    PromptLogprobs(
                        sequence.handle,
                        entry.start + skip,
                        entry.token_ids[skip:],
                        entry.logprobs[skip:],
                        entry.ranks[skip:],
                    )
                )

    def add_pooled(self, pooled: PooledRows | None) -> None:
        """Keep the vectors of rows that are still live; their handles are known only now."""
        if pooled is None:
            return
        live = self._state.table.live[pooled.rows]
        rows, values = pooled.rows, pooled.values
        if np.count_nonzero(live) < rows.size:
            rows, values = rows[live], values[live]
        self._pooled = PooledColumns(self._state.table.handles[rows], values)

    def build(
        self,
        sampled: Sampled,
        finish: Int8Array | None,
        stops: Int32Array | None,
        logprobs: SampledLogprobs | None,
    ) -> OutputBatch | None:
        """The batch of a committed step; None when there is nothing to tell."""
        count = sampled.rows.size
        if not count:
            return self.build_notices()
        table = self._state.table
        batch = OutputBatch(
            table.handles[sampled.rows],
            table.choices[sampled.rows],
            self._ones[:count],
            sampled.tokens,
            self._no_finish[:count] if finish is None else finish,
            self._no_stop[:count] if stops is None else stops,
            None if logprobs is None else _keep_logprobs(logprobs, sampled.kept),
        )
        if self._state.notices or self._prompt_logprobs:
            batch = self._with_notices(batch)
        return batch

    def build_notices(self) -> OutputBatch | None:
        """A batch without sampled tokens; None when there is nothing to tell."""
        if not self._state.notices and not self._prompt_logprobs:
            return None
        none = np.zeros(0, np.int32)
        return self._with_notices(
            OutputBatch(none.astype(np.int64), none, none, none, none.astype(np.int8), none)
        )

    def _with_notices(self, batch: OutputBatch) -> OutputBatch:
        notices, self._state.notices = self._state.notices, Notices()
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        pooled, self._pooled = self._pooled, None
        ended = notices.ended
        zeros = np.zeros(len(ended), np.int32)
        return OutputBatch(
            np.append(batch.handles, np.array([entry[0] for entry in ended], np.int64)),
            np.append(batch.choices, np.array([entry[1] for entry in ended], np.int32)),
            np.append(batch.counts, zeros),
            batch.token_ids,
            np.append(batch.finish, np.array([entry[2] for entry in ended], np.int8)),
            np.append(batch.stop_tokens, zeros - 1),
            batch.logprobs,
            prompt_logprobs,
            notices.started,
            notices.failures,
            pooled,
        )


def _keep_logprobs(logprobs: SampledLogprobs, kept: BoolArray | None) -> LogprobColumns | None:
    """Logprobs of the entries that count, indexed by their place in the batch."""
    if kept is None:
        return LogprobColumns(
            logprobs.entries,
            logprobs.counts,
            logprobs.token_ids,
            logprobs.logprobs,
            logprobs.ranks,
        )
    mask = kept[logprobs.entries]
    if not mask.any():
        return None
    place = (np.cumsum(kept) - 1).astype(np.int32)
    return LogprobColumns(
        place[logprobs.entries[mask]],
        logprobs.counts[mask],
        logprobs.token_ids[mask],
        logprobs.logprobs[mask],
        logprobs.ranks[mask],
    )
