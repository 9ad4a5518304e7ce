"""What surrounds the model in a decode step: expansion of rows, sampling with feedback."""

from __future__ import annotations

import pytest
import torch

from tests.contract.kernels.harness import DTYPES, Implementation, random
from xllm.hardware.kernels import reference


def test_rows_are_expanded_and_padding_writes_nowhere(implementation: Implementation) -> None:
    generator = torch.Generator().manual_seed(0)
    token_table = torch.randint(0, 1000, (5, 41), generator=generator, dtype=torch.int32)
    block_table = torch.randint(1, 90, (5, 10), generator=generator, dtype=torch.int32)
    rows = torch.tensor([3, 0, 4, 0], dtype=torch.int32)
    lens = torch.tensor([1, 40, 8, 0], dtype=torch.int32)
    new_blocks = torch.tensor([-1, 95, 0, 7], dtype=torch.int32)
    filled = []
    for expand in (implementation.expand_decode, reference.expand_decode):
        ids, blocks = torch.zeros(4, dtype=torch.int32), torch.zeros(4, 10, dtype=torch.int32)
        positions, index, slots = (torch.zeros(4, dtype=torch.int64) for _ in range(3))
        table = block_table.clone()
        expand(rows, lens, token_table, table, 4, new_blocks, ids, positions, index, slots, blocks)
        for row, length in enumerate(lens.tolist()):
            blocks[row, -(-length // 4) :] = 0  # what lies behind the last block is not read
        filled.append((ids, positions, index, slots, blocks, table))
    for own, expected in zip(*filled, strict=True):
        assert torch.equal(own, expected)
    *_, slots, blocks, table = filled[0]
    assert table[0, 9] == 95 and table[4, 1] == 0  # appended, also for later steps
    assert blocks[1, 9] == 95 and slots.tolist()[1:3] == [95 * 4 + 3, 3]
    assert (table != block_table).sum() == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_sample_as_the_reference_and_feed_their_tokens_back(
    implementation: Implementation, dtype: torch.dtype
) -> None:
    logits = random(5, 1003, dtype=dtype)
    logits[4, 17] = float("nan")
    inverse = torch.tensor([0.0, 1.0, 2.5, 1.0, 0.0])
    keys = torch.randint(-(2**31), 2**31 - 1, (2, 8), dtype=torch.int32)[:, :5]
    index = torch.tensor([7, 2, -1, 11, -1])
    results = []
    for sample in (implementation.sample_tokens, reference.sample_tokens):
        tokens, best = torch.zeros(5, dtype=torch.int32), torch.zeros(5)
        table = torch.full((3, 4), -5, dtype=torch.int32)
        sample(logits, inverse, keys, tokens, best, table, index)
        results.append((tokens, best, table))
    (tokens, best, table), (expected_tokens, expected_best, expected_table) = results
    assert torch.equal(tokens[:4], expected_tokens[:4])  # that of a NaN row means nothing
    torch.testing.assert_close(best, expected_best, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(table, expected_table)
