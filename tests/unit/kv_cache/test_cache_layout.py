"""Sizes of KV blocks, and how many fit."""

import pytest

from xllm.kv_cache.layout import (
    CacheDemand,
    CacheGroup,
    CacheSpec,
    bytes_per_block,
    capacity_tokens,
    fit_blocks_to_bytes,
    fit_blocks_to_tokens,
    max_blocks_per_sequence,
    max_concurrency,
    total_bytes,
)

DEMAND = CacheDemand(max_num_seqs=4, max_step_tokens=64, max_model_len=1024)
SIZES = {"block_size": 16, "num_kv_heads": 2, "head_dim": 8, "dtype_bytes": 2}
FULL = CacheGroup(spec=CacheSpec(kind="full", **SIZES), layers=(0, 3))
WINDOW = CacheGroup(
    spec=CacheSpec(kind="sliding_window", window=128, **SIZES), layers=(1, 2, 4, 5, 6)
)


def test_a_block_holds_keys_and_values_of_every_layer():
    assert bytes_per_block(FULL.spec) == 2 * 16 * 2 * 8 * 2
    assert FULL.bytes_per_block == 2 * bytes_per_block(FULL.spec)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "full", "window": 4},
        {"kind": "sliding_window"},
        {"kind": "sliding_window", "window": 0},
        {"kind": "full", "block_size": 0},
    ],
)
def test_contradictory_specs_are_refused(fields):
    with pytest.raises(ValueError, match=r"window must|block_size must"):
        CacheSpec(**{**SIZES, **fields})


def test_a_byte_budget_is_used_up_but_never_exceeded():
    for budget in (20_000, 100_000, 1_000_000):
        groups = fit_blocks_to_bytes([FULL, WINDOW], budget, DEMAND)
        assert total_bytes(groups) <= budget
        one_more = fit_blocks_to_tokens([FULL, WINDOW], groups[0].num_blocks * 16, DEMAND)
        assert total_bytes(one_more) > budget


def test_windows_alone_take_no_more_than_they_can_use():
    groups = fit_blocks_to_bytes([WINDOW], 1 << 40, DEMAND)
    assert groups == fit_blocks_to_tokens([WINDOW], 1 << 40, DEMAND)


def test_a_budget_below_one_block_names_what_is_needed():
    with pytest.raises(ValueError, match="max_cache_size: 100 bytes"):
        fit_blocks_to_bytes([FULL, WINDOW], 100, DEMAND)


def test_a_window_group_stops_growing_at_what_all_sequences_can_see():
    small, large = (
        fit_blocks_to_tokens([FULL, WINDOW], tokens, DEMAND) for tokens in (256, 1 << 20)
    )
    assert small[0].num_blocks == small[1].num_blocks == 16 + 1
    # 4 sequences x (window + 1 partial block at either end) + two steps in flight
    assert large[1].num_blocks == 4 * (8 + 2) + 8 + 1
    assert large[0].num_blocks == (1 << 16) + 1


def test_no_sequence_needs_more_of_a_window_group_than_window_and_steps_in_flight():
    assert max_blocks_per_sequence(FULL.spec, DEMAND) == 64
    assert max_blocks_per_sequence(WINDOW.spec, DEMAND) == -(-(127 + 2 * 64) // 16) + 1


def test_capacity_is_that_of_the_scarcest_group():
    groups = fit_blocks_to_tokens([FULL, WINDOW], 512, DEMAND)
    assert capacity_tokens(groups, DEMAND) == 512
    plenty = fit_blocks_to_tokens([FULL, WINDOW], 1 << 20, DEMAND)
    assert capacity_tokens(plenty, DEMAND) == DEMAND.max_model_len


def test_concurrency_counts_sequences_of_the_whole_context():
    groups = fit_blocks_to_tokens([FULL], 1536, DEMAND)
    assert max_concurrency(groups, DEMAND) == 1.5


def test_steps_in_flight_count_once_for_all_sequences_of_a_window_group():
    # 3 windows of 10 blocks, and 8 blocks of two steps of 64 tokens
    three = CacheGroup(spec=WINDOW.spec, layers=(1,), num_blocks=3 * 10 + 8 + 1)
    assert max_concurrency([three], DEMAND) == 3
    plenty = fit_blocks_to_tokens([FULL, WINDOW], 1 << 20, DEMAND)
    assert max_concurrency(plenty, DEMAND) == DEMAND.max_num_seqs
