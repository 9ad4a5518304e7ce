"""From a step plan to the flat tensors the model reads, without a loop over rows.

What the host knows (positions, lengths, places in the tables) is computed in NumPy and uploaded in
one copy; what only the device knows (newest tokens, block ids) is gathered there from the rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.messages.worker import StepPlan
from xllm.core.utils.arrays import Int64Array
from xllm.execution.executor.inputs import BatchShape, ModelInputs
from xllm.execution.sampling.step import SamplingStep
from xllm.execution.transfer import upload
from xllm.execution.worker.rows import Rows, table_width
from xllm.kv_cache.layout import CacheGroup
from xllm.modeling.attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's model inputs, its sampling rows and where their tokens go."""

    model: ModelInputs
    sampling: SamplingStep
    write_index: torch.Tensor  # (M,) int64 into the flat token table


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """Where each token of the batch lies, on the host."""

    positions: Int64Array  # (T,)
    token_rows: Int64Array  # (T,)
    query_start_loc: np.ndarray  # (S + 1,) int32


class InputBuilder:
    """Builds each step from the plan and the persistent rows."""

    def __init__(
        self, rows: Rows, groups: tuple[CacheGroup, ...], max_rows: int, device: torch.device
    ) -> None:
        self._rows = rows
        self._device = device
        self._block_sizes = [group.spec.block_size for group in groups]
        self._distinct_block_sizes = sorted(set(self._block_sizes))
        # Query starts of a pure decode step are always 0, 1, 2, ...
        self._decode_starts = np.arange(max_rows + 1, dtype=np.int32)

    def build(self, plan: StepPlan) -> StepInputs:
        """The inputs of ``plan``, whose new rows and blocks are in the tables already."""
        rows = plan.rows.astype(np.int64)
        computed = plan.num_computed.astype(np.int64)
        seq_lens = plan.num_computed + plan.num_scheduled
        max_query_len = int(plan.num_scheduled.max())
        places = self._places(plan, rows, computed, max_query_len)
        token_table = self._rows.token_ids
        width = token_table.shape[1]
        samples = plan.samples
        every_token_samples = max_query_len == 1 and bool(samples.all())
        sampling = SamplingStep.of(
            rows[samples],
            seq_lens[samples].astype(np.int64),
            self._rows.prompt_lens,
            token_table,
        )
        host = [
            places.positions,
            places.token_rows * width + places.positions,
            places.query_start_loc,
            seq_lens,
            rows,
            sampling.rows * width + sampling.positions,
            (places.query_start_loc[1:][samples] - 1).astype(np.int64),
        ]
        for block_size in self._distinct_block_sizes:
            host += self._block_places(places, block_size)
        (
            positions,
            token_index,
            starts,
            lens,
            row_index,
            write_index,
            logits_index,
            *block_places,
        ) = upload(host, self._device)
        max_seq_len = int(seq_lens.max())
        metadata = []
        for group, block_size in enumerate(self._block_sizes):
            place = 2 * self._distinct_block_sizes.index(block_size)
            metadata.append(
                AttentionMetadata(
                    query_start_loc=starts,
                    seq_lens=lens,
                    block_table=self._block_table(group, row_index, max_seq_len),
                    slot_mapping=self._slots(group, *block_places[place : place + 2]),
                    max_query_len=max_query_len,
                )
            )
        if not self._block_sizes:  # an encoder: rows, but no blocks
            none = lens.new_empty((len(rows), 0))
            metadata.append(
                AttentionMetadata(starts, lens, none, positions.new_empty(0), max_query_len)
            )
        model = ModelInputs(
            input_ids=token_table.view(-1).index_select(0, token_index),
            positions=positions,
            metadata=tuple(metadata),
            logits_index=None if every_token_samples else logits_index,
            shape=BatchShape(len(places.positions), len(rows)),
        )
        return StepInputs(model, sampling, write_index)

    def _places(
        self, plan: StepPlan, rows: Int64Array, computed: Int64Array, max_query_len: int
    ) -> _Places:
        if max_query_len == 1:
            return _Places(computed, rows, self._decode_starts[: len(rows) + 1])
        counts = plan.num_scheduled
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        positions = np.arange(starts[-1], dtype=np.int64)
        positions += np.repeat(computed - starts[:-1], counts)
        return _Places(positions, np.repeat(rows, counts), starts)

    def _block_places(self, places: _Places, block_size: int) -> tuple[Int64Array, Int64Array]:
        """Places (T,) in the flat block table, and offsets (T,) within the block."""
        group = self._block_sizes.index(block_size)
        width = self._rows.block_tables[group].shape[1]
        blocks = places.positions // block_size
        return places.token_rows * width + blocks, places.positions - blocks * block_size

    def _block_table(self, group: int, row_index: torch.Tensor, max_seq_len: int) -> torch.Tensor:
        width = table_width(max_seq_len, self._block_sizes[group])
        return self._rows.block_tables[group][:, :width].index_select(0, row_index)

    def _slots(self, group: int, index: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        blocks = self._rows.block_tables[group].view(-1).index_select(0, index)
        return torch.add(offset, blocks, alpha=self._block_sizes[group])
