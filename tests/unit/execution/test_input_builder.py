from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.execution.test_rows import CPU, group, int32, new_rows
from xllm.core.messages.worker import AppendedBlocks, StepPlan
from xllm.execution.worker.input_builder import InputBuilder, StepInputs
from xllm.execution.worker.rows import Rows, table_width

BLOCK = 4
MAX_ROWS = 6
MAX_LEN = 24


def plan(rows: list[int], computed: list[int], scheduled: list[int], samples: list[bool]):
    return StepPlan(
        step_id=0,
        rows=int32(*rows),
        num_scheduled=int32(*scheduled),
        num_computed=int32(*computed),
        samples=np.array(samples),
        blocks=(),
        freed_rows=int32(),
    )


@pytest.fixture
def rows() -> Rows:
    """Row r holds tokens 100r, 100r + 1, ...; its blocks are 10r + 1, 10r + 2, ..."""
    built = Rows(MAX_ROWS, MAX_LEN, [group(BLOCK), group(BLOCK, window=5), group(8)], CPU)
    index = list(range(MAX_ROWS))
    built.start(new_rows(index, [[100 * r + i for i in range(20)] for r in index], [6] * MAX_ROWS))
    for g, per_row in enumerate((6, 6, 3)):
        ids = np.concatenate([np.arange(per_row) + 10 * r + 1 + 1000 * g for r in index])
        counts = np.full(MAX_ROWS, per_row, np.int32)
        starts = np.zeros(MAX_ROWS, np.int32)
        built.append_blocks(g, AppendedBlocks(int32(*index), starts, counts, ids))
    return built


def build(rows: Rows, step: StepPlan) -> StepInputs:
    groups = (group(BLOCK), group(BLOCK, window=5), group(8))
    return InputBuilder(rows, groups, MAX_ROWS, CPU).build(step)


def expected(step: StepPlan, block_size: int, group_base: int):
    """The same, one token at a time."""
    ids, positions, slots = [], [], []
    for row, computed, count in zip(
        step.rows.tolist(), step.num_computed.tolist(), step.num_scheduled.tolist(), strict=True
    ):
        for p in range(computed, computed + count):
            block = 10 * row + 1 + group_base + p // block_size
            ids.append(100 * row + p)
            positions.append(p)
            slots.append(block * block_size + p % block_size)
    return ids, positions, slots


CASES = {
    "decode": plan([3, 0, 5], [7, 19, 0], [1, 1, 1], [True] * 3),
    "one row": plan([4], [11], [1], [True]),
    "chunks": plan([1, 2], [0, 5], [6, 9], [True, False]),
    "mixed": plan([5, 0, 2, 1], [12, 3, 0, 8], [1, 1, 7, 12], [True, True, False, True]),
    "decode that only scores": plan([1, 2], [4, 9], [1, 1], [False, True]),
}


@pytest.mark.parametrize("step", CASES.values(), ids=CASES)
def test_tokens_positions_and_slots_equal_a_plain_loop(rows, step):
    inputs = build(rows, step).model
    ids, positions, _ = expected(step, BLOCK, 0)
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert inputs.positions.dtype == torch.int64
    for metadata, block_size, base in zip(
        inputs.metadata, (BLOCK, BLOCK, 8), (0, 1000, 2000), strict=True
    ):
        assert metadata.slot_mapping.tolist() == expected(step, block_size, base)[2]
        assert metadata.slot_mapping.dtype == torch.int64


@pytest.mark.parametrize("step", CASES.values(), ids=CASES)
def test_metadata_describes_every_row(rows, step):
    inputs = build(rows, step).model
    ends = step.num_computed + step.num_scheduled
    for metadata, block_size, base in zip(
        inputs.metadata, (BLOCK, BLOCK, 8), (0, 1000, 2000), strict=True
    ):
        assert metadata.seq_lens.tolist() == ends.tolist()
        assert metadata.query_start_loc.tolist() == [0, *np.cumsum(step.num_scheduled).tolist()]
        assert metadata.query_start_loc.dtype == metadata.seq_lens.dtype == torch.int32
        assert metadata.max_query_len == step.num_scheduled.max()
        first = [10 * row + 1 + base for row in step.rows.tolist()]
        assert metadata.block_table[:, 0].tolist() == first
        assert metadata.block_table.shape == (len(first), table_width(int(ends.max()), block_size))
        assert metadata.block_table.is_contiguous()


@pytest.mark.parametrize("step", CASES.values(), ids=CASES)
def test_sampling_rows_take_the_hidden_state_of_their_last_token(rows, step):
    inputs = build(rows, step)
    last = np.cumsum(step.num_scheduled) - 1
    wanted = last[step.samples].tolist()
    index = inputs.model.logits_index
    assert (list(range(len(last))) if index is None else index.tolist()) == wanted
    ends = (step.num_computed + step.num_scheduled)[step.samples]
    assert inputs.sampling.rows.tolist() == step.rows[step.samples].tolist()
    assert inputs.sampling.positions.tolist() == ends.tolist()
    assert inputs.sampling.output_lens.tolist() == (ends - 6).tolist()
    width = MAX_LEN + 1
    assert inputs.write_index.tolist() == (step.rows[step.samples] * width + ends).tolist()


def test_a_pure_decode_step_gathers_no_hidden_states(rows):
    assert build(rows, CASES["decode"]).model.logits_index is None
