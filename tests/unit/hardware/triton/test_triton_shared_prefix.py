"""Decode rows that share leading blocks: read together they give what each gives alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import PagedBatch, paged_batch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, PREFIX_UNIT, SharedPrefix
from xllm.hardware.kernels.triton import shared_prefix
from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.hardware.kernels.triton.decode_attention import (
    SplitPlan,
    choose_splits,
    decode_attention,
)
from xllm.hardware.kernels.triton.shared_prefix import choose_prefix_shares, choose_prefix_tile


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
    ("heads", "dtype", "cache_dtype", "softcap", "with_sinks"),
    [
        ((3, 1), torch.float32, torch.float32, 0.0, False),
        ((2, 1), torch.float32, torch.float32, 3.0, False),
        ((2, 1), torch.bfloat16, torch.bfloat16, 0.0, False),
        ((4, 2), torch.float32, torch.float32, 0.0, True),
        ((4, 2), torch.bfloat16, torch.float8_e4m3fn, 3.0, True),
    ],
)
def test_rows_equal_the_reference(
    heads, dtype, cache_dtype, softcap: float, with_sinks: bool, device
) -> None:
    batch = paged_batch([1] * 5, [300, 257, 20, 129, 140], heads=heads, dtype=dtype, device=device)
    caches = {"k_cache": batch.k_cache.to(cache_dtype), "v_cache": batch.v_cache.to(cache_dtype)}
    batch = dataclasses.replace(batch, **caches)
    # Two prefixes of different lengths, in no order; one row is alone; two have one own token.
    prefix = _share(batch, [([1, 0], 2), ([4, 3], 1)])
    sinks = torch.linspace(2.0, -2.0, heads[0], device=device) if with_sinks else None
    rest = (0.3, softcap, 0, 1, sinks)
    actual = paged_attention(*batch.arguments, *rest, prefix=prefix)
    expected = reference.paged_attention(*batch.arguments, *rest)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("plan", [SplitPlan(1, 16), SplitPlan(4, 16)])
def test_padding_rows_and_split_rows_merge(plan: SplitPlan, device) -> None:
    batch = paged_batch([1, 1, 1], [200, 170, 40], heads=(2, 1), device=device)
    prefix = _share(batch, [([0, 1], 1)])
    batch = dataclasses.replace(batch, seq_lens=batch.seq_lens * torch.tensor([1, 1, 0]).to(device))
    out = torch.full((3, 2 * 16), float("nan"), device=device)
    decode_attention(*batch.arguments, 0.3, 0.0, 0, out, prefix=prefix, plan=plan)
    expected = reference.paged_attention(*batch.arguments, 0.3)
    torch.testing.assert_close(out[:2], expected[:2], rtol=2e-5, atol=2e-5)
    assert out[2].isnan().all(), "a padding row is left alone"


def test_more_rows_than_a_line_beside_one_that_is_split(device) -> None:
    """Own keys from one to several tiles; a row without a prefix has shares of its own to merge."""
    own = [1 + 7 * i % 60 for i in range(LINE_ROWS + 3)]
    batch = paged_batch([1] * (len(own) + 1), [*(128 + n for n in own), 260], device=device)
    prefix = _share(batch, [(list(range(LINE_ROWS)), 1), ([LINE_ROWS + 2, LINE_ROWS], 1)])
    out = torch.full((len(own) + 1, 4 * 16), float("nan"), device=device)
    plan = SplitPlan(4, 16)
    decode_attention(*batch.arguments, 0.3, 0.0, 0, out, prefix=prefix, plan=plan)
    expected = reference.paged_attention(*batch.arguments, 0.3)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_the_programs_of_a_prefix_fit_the_device_at_once(group: int, cache_dtype) -> None:
    q = torch.empty(1, 8 * group, 128, dtype=torch.bfloat16)
    tile = choose_prefix_tile(q, torch.empty(1, 16, 8, 128, dtype=cache_dtype))
    shares = []
    for rows in (1, 32, 64, 256, 1000):
        tiles = -(-rows // LINE_ROWS) * (LINE_ROWS * group // tile.block_m)
        shares.append(choose_prefix_shares(rows, 8, group, tile, 132))
        assert shares[-1] == 1 or shares[-1] * 8 * tiles <= 132
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 1 == shares[-1]


@pytest.mark.parametrize(("kilobytes", "num_stages"), [(99, 2), (163, 3), (227, 3)])
def test_tiles_of_wide_heads_fit_the_shared_memory_of_a_program(
    kilobytes: int, num_stages: int, monkeypatch
) -> None:
    """Compiled for compute capability 8.9, three stages take 100 kB of 99."""
    monkeypatch.setattr(shared_prefix, "max_shared_memory", lambda device: kilobytes << 10)
    q = torch.empty(1, 8, 256, dtype=torch.bfloat16)
    tile = choose_prefix_tile(q, torch.empty(1, 16, 4, 256, dtype=torch.bfloat16))
    assert tile.num_stages == num_stages


def test_many_rows_beside_a_prefix_have_no_second_share_of_their_own() -> None:
    assert choose_splits(256, 8, 132, beside_prefix=True).splits == 1
    assert choose_splits(256, 8, 132).splits == 2
    assert choose_splits(8, 8, 132, beside_prefix=True) == choose_splits(8, 8, 132)
