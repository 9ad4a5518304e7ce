"""Decode rows that share leading blocks: read together they give what each gives alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import PagedBatch, paged_batch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, PREFIX_UNIT, SharedPrefix
from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.hardware.kernels.triton.decode_attention import SplitPlan, decode_attention


def _share(batch: PagedBatch, groups: list[tuple[list[int], int]]) -> SharedPrefix:
    """Let the rows of each group begin with the blocks of its first row."""
    lens = torch.zeros_like(batch.seq_lens)
    lines = []
    block_size = batch.k_cache.shape[1]
    for rows, units in groups:
        tokens = units * PREFIX_UNIT
        for row in rows:
            batch.block_table[row, : tokens // block_size] = batch.block_table[
                rows[0], : tokens // block_size
            ]
            lens[row] = tokens
        lines.append(rows + [-1] * (LINE_ROWS - len(rows)))
    lines.append([-1] * LINE_ROWS)
    members = torch.tensor(lines, dtype=torch.int32, device=lens.device)
    return SharedPrefix(lens, members)


@pytest.mark.parametrize(
    ("heads", "dtype", "softcap", "with_sinks"),
    [
        ((3, 1), torch.float32, 0.0, False),
        ((2, 1), torch.float32, 3.0, False),
        ((2, 1), torch.bfloat16, 0.0, False),
        ((4, 2), torch.float32, 0.0, True),
    ],
)
def test_rows_equal_the_reference(heads, dtype, softcap: float, with_sinks: bool, device) -> None:
    batch = paged_batch([1] * 5, [300, 257, 20, 129, 140], heads=heads, dtype=dtype, device=device)
    # Two prefixes of different lengths, in no order; one row is alone; two have one own token.
    prefix = _share(batch, [([1, 0], 2), ([4, 3], 1)])
    sinks = torch.linspace(2.0, -2.0, heads[0], device=device) if with_sinks else None
    rest = (0.3, softcap, 0, 1, sinks)
    actual = paged_attention(*batch.arguments, *rest, prefix=prefix)
    expected = reference.paged_attention(*batch.arguments, *rest)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("plan", [SplitPlan(1, 1), SplitPlan(4, 1)])
def test_padding_rows_and_split_rows_merge(plan: SplitPlan, device) -> None:
    batch = paged_batch([1, 1, 1], [200, 170, 40], heads=(2, 1), device=device)
    prefix = _share(batch, [([0, 1], 1)])
    batch = dataclasses.replace(batch, seq_lens=batch.seq_lens * torch.tensor([1, 1, 0]).to(device))
    out = torch.full((3, 2 * 16), float("nan"), device=device)
    decode_attention(*batch.arguments, 0.3, 0.0, 0, out, prefix=prefix, plan=plan)
    expected = reference.paged_attention(*batch.arguments, 0.3)
    torch.testing.assert_close(out[:2], expected[:2], rtol=2e-5, atol=2e-5)
    assert out[2].isnan().all(), "a padding row is left alone"
