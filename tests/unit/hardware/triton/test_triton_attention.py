"""Paged attention in Triton against the reference, on batches that cross every border."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import PagedBatch, paged_batch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.hardware.kernels.triton.decode_attention import (
    KeyTile,
    SplitPlan,
    choose_key_tile,
    choose_splits,
    decode_attention,
)

CASES = {
    "decode rows of ragged lengths": {"query_lens": [1, 1, 1], "seq_lens": [1, 16, 75]},
    "one prompt": {"query_lens": [37], "seq_lens": [37]},
    "decode rows and chunks mixed": {"query_lens": [1, 1, 19, 5], "seq_lens": [33, 2, 70, 5]},
    "padding rows without tokens": {"query_lens": [1, 0, 3, 0], "seq_lens": [20, 0, 3, 0]},
    "one query head per KV head": {"query_lens": [1, 9], "seq_lens": [40, 9], "heads": (2, 2)},
    "three query heads per KV head": {"query_lens": [1, 9], "seq_lens": [40, 20], "heads": (6, 2)},
    "head dimension not a power of two": {
        "query_lens": [1, 4],
        "seq_lens": [20, 4],
        "head_dim": 24,
    },
    "large blocks": {"query_lens": [1, 17], "seq_lens": [100, 50], "block_size": 128},
    "bfloat16": {"query_lens": [1, 5], "seq_lens": [40, 9], "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_equals_reference(case: dict, device) -> None:
    batch = paged_batch(**case, device=device)
    _check(batch, softcap=0.0, window=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_of_8_bit_floats_equals_reference(dtype: torch.dtype, device) -> None:
    batch = paged_batch([1, 1, 19], [33, 2, 70], dtype=dtype, device=device)
    caches = {
        "k_cache": batch.k_cache.to(torch.float8_e4m3fn),
        "v_cache": batch.v_cache.to(torch.float8_e4m3fn),
    }
    _check(dataclasses.replace(batch, **caches), softcap=0.0, window=0)


@pytest.mark.parametrize(("softcap", "window"), [(3.0, 0), (0.0, 18)])
def test_softcap_and_window_equal_reference(softcap: float, window: int, device) -> None:
    batch = paged_batch([1, 1, 19], [33, 2, 70], device=device)
    _check(batch, softcap, window)


SINKS = (1.5, -2.0, 60.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 18])
def test_sinks_equal_reference(window: int, dtype: torch.dtype, device) -> None:
    batch = paged_batch([1, 1, 19, 0], [33, 2, 70, 0], dtype=dtype, device=device)
    _check(batch, 0.0, window, torch.tensor(SINKS, device=device))


def _check(batch: PagedBatch, softcap: float, window: int, sinks: Tensor | None = None) -> None:
    rest = (0.3, softcap, window, batch.max_query_len, sinks)
    actual = paged_attention(*batch.arguments, *rest)
    expected = reference.paged_attention(*batch.arguments, *rest)
    tolerance = 2e-2 if batch.q.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "plan", [SplitPlan(1, 16), SplitPlan(2, 16), SplitPlan(16, 16), SplitPlan(4, 32)]
)
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
def test_any_number_of_shares_gives_the_same_answer(plan: SplitPlan, sinks, device) -> None:
    batch = paged_batch([1, 1], [190, 17], device=device)
    out = torch.full((2, 4 * 16), float("nan"), device=device)
    if sinks is not None:
        sinks = torch.tensor(sinks, device=device)
    decode_attention(*batch.arguments, 0.3, 0.0, 0, out, sinks=sinks, plan=plan)
    expected = reference.paged_attention(*batch.arguments, 0.3, 0.0, 0, 1, sinks)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("block_size", [1, 4, 12, 16, 64])
@pytest.mark.parametrize("window", [0, 40])
def test_tiles_may_hold_many_blocks_or_a_part_of_one(block_size: int, window: int, device) -> None:
    batch = paged_batch([1, 1, 1], [90, 33, 1], block_size=block_size, device=device)
    batch.block_table[:, -1] = 1 << 30  # past the last block of any row: never looked at
    out = torch.full((3, 4 * 16), float("nan"), device=device)
    rest = (0.3, 0.0, window)
    decode_attention(*batch.arguments, *rest, out, plan=SplitPlan(2, 32), tile=KeyTile(32, 4, 2))
    expected = reference.paged_attention(*batch.arguments, *rest, 1)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


def test_blocks_left_of_the_window_are_never_used(device) -> None:
    batch = paged_batch([1, 6], [90, 80], device=device)
    expected = reference.paged_attention(*batch.arguments, 0.3, 0.0, 20, 6)
    # Queries sit at 89 and at 74..79, so the first visible keys are 70 and 55.
    for row, stale_blocks in ((0, 4), (1, 3)):
        blocks = batch.block_table[row, :stale_blocks].long()
        batch.k_cache[blocks] = float("nan")
        batch.v_cache[blocks] = float("nan")
    actual = paged_attention(*batch.arguments, 0.3, 0.0, 20, 6)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


def test_few_rows_are_split_more_than_many() -> None:
    few, many = choose_splits(1, 8, 132), choose_splits(256, 8, 132)
    assert few.splits > many.splits
    assert few.min_keys < many.min_keys


@pytest.mark.parametrize(
    ("rows", "programs"), [(1, 64), (2, 128), (8, 256), (32, 512), (64, 1024), (256, 2048)]
)
def test_rows_of_1024_keys_fill_the_device(rows: int, programs: int) -> None:
    plan = choose_splits(rows, 8, 132)
    assert rows * 8 * min(plan.splits, 1024 // plan.min_keys) == programs


def _key_tile(rows: int, dtype: torch.dtype, head_dim: int = 128) -> KeyTile:
    q = torch.empty(1, 32, head_dim, dtype=torch.bfloat16)
    return choose_key_tile(q, torch.empty(1, 32, 8, head_dim, dtype=dtype), 8 * rows, 132)


@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        (1, KeyTile(128, 4, 3)),
        (8, KeyTile(64, 4, 3)),
        (32, KeyTile(64, 4, 2)),
        (33, KeyTile(64, 4, 2)),
        (64, KeyTile(64, 4, 2)),
        (101, KeyTile(64, 4, 3)),
        (128, KeyTile(64, 4, 3)),
        (256, KeyTile(64, 4, 2)),
    ],
)
def test_16_bit_tiles_are_those_measured_for_their_load(rows: int, tile: KeyTile) -> None:
    assert _key_tile(rows, torch.bfloat16) == tile
    halved = dataclasses.replace(tile, block_n=tile.block_n // 2)
    assert _key_tile(rows, torch.bfloat16, head_dim=256) == halved


@pytest.mark.parametrize(("rows", "block_n"), [(1, 128), (8, 128), (32, 64), (64, 64), (256, 64)])
def test_8_bit_tiles_are_those_measured_for_their_load(rows: int, block_n: int) -> None:
    assert _key_tile(rows, torch.float8_e4m3fn) == KeyTile(block_n, 4, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_wide_tiles_need_the_shared_memory_for_them(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "xllm.hardware.kernels.triton.decode_attention"
    monkeypatch.setattr(f"{module}.max_shared_memory", lambda device: 99 << 10)
    assert _key_tile(1, dtype) == KeyTile(64, 4, 3)
    monkeypatch.undo()
    assert _key_tile(1, dtype, head_dim=512) == KeyTile(32, 4, 3)
