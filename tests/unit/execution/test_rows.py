from __future__ import annotations

import numpy as np
import pytest
import torch

from xllm.core.messages.worker import AppendedBlocks, NewRows, RowSampling
from xllm.core.request.sampling import SamplingParams
from xllm.execution.transfer import upload
from xllm.execution.worker.rows import Rows
from xllm.kv_cache.layout import CacheGroup, CacheSpec

CPU = torch.device("cpu")


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def group(block_size: int, num_blocks: int = 100, window: int | None = None) -> CacheGroup:
    spec = CacheSpec(
        kind="full" if window is None else "sliding_window",
        block_size=block_size,
        num_kv_heads=1,
        head_dim=4,
        dtype_bytes=4,
        window=window,
    )
    return CacheGroup(spec=spec, layers=(0,), num_blocks=num_blocks)


def new_rows(rows: list[int], tokens: list[list[int]], prompt_lens: list[int]) -> NewRows:
    return NewRows(
        rows=int32(*rows),
        num_tokens=int32(*map(len, tokens)),
        prompt_lens=int32(*prompt_lens),
        token_ids=int32(*(t for row in tokens for t in row)),
        sampling=[RowSampling(SamplingParams(), 0)] * len(rows),
    )


def test_started_rows_hold_their_tokens_and_prompt_lengths():
    rows = Rows(4, 10, [group(4)], CPU)
    rows.start(new_rows([2, 0], [[1, 2, 3], [4]], [2, 1]))
    assert rows.token_ids[2, :3].tolist() == [1, 2, 3]
    assert rows.token_ids[0, :2].tolist() == [4, 0]
    assert rows.prompt_lens.tolist() == [1, 0, 2, 0]


def test_a_restarted_row_may_be_shorter_than_before():
    rows = Rows(2, 10, [group(4)], CPU)
    rows.start(new_rows([1], [[1, 2, 3, 4]], [4]))
    rows.start(new_rows([1], [[9]], [1]))
    assert rows.token_ids[1, 0] == 9
    assert rows.prompt_lens[1] == 1


def test_blocks_are_appended_where_the_plan_says():
    rows = Rows(3, 40, [group(4), group(4)], CPU)
    appended = AppendedBlocks(int32(2, 0), int32(1, 3), int32(3, 1), int32(7, 8, 9, 5))
    rows.append_blocks(1, appended)
    assert rows.block_tables[1][2, :5].tolist() == [0, 7, 8, 9, 0]
    assert rows.block_tables[1][0, :4].tolist() == [0, 0, 0, 5]
    assert not rows.block_tables[0].any()


def test_arrays_from_the_wire_are_accepted():
    rows = Rows(2, 10, [group(4)], CPU)
    read_only = np.frombuffer(int32(3, 4).tobytes(), np.int32)
    rows.append_blocks(0, AppendedBlocks(int32(1), int32(0), int32(2), read_only))
    assert rows.block_tables[0][1, :2].tolist() == [3, 4]


def test_the_last_token_of_a_full_context_has_a_place():
    assert Rows(1, 10, [group(4)], CPU).token_ids.shape == (1, 11)


def test_inconsistent_counts_are_caught():
    rows = Rows(2, 10, [group(4)], CPU)
    with pytest.raises(AssertionError, match="values for"):
        rows.append_blocks(0, AppendedBlocks(int32(1), int32(0), int32(3), int32(3, 4)))


def test_upload_on_a_cpu_shares_memory():
    array = np.arange(3)
    (tensor,) = upload([array], CPU)
    array[1] = 7
    assert tensor.tolist() == [0, 7, 2]
