"""Block accounting of one and several cache groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.worker import make_groups
from xllm.kv_cache.blocks import BlockManager
from xllm.kv_cache.layout import CacheDemand
from xllm.kv_cache.prefix import (
    NO_MATCH,
    BlockKeys,
    GroupView,
    PrefixCache,
    PrefixIdentity,
    match,
)

DEMAND = CacheDemand(max_num_seqs=4, max_step_tokens=16, max_model_len=64)
TOKENS = np.arange(64, dtype=np.int32)
TABLE = np.tile(TOKENS, (4, 1))


def manager(num_blocks=16, windows=(None,), block_size=4) -> BlockManager:
    return BlockManager(make_groups(num_blocks, block_size, windows), DEMAND)


def start(blocks: BlockManager, row: int, num_tokens: int, found=NO_MATCH, keys=None, **kwargs):
    """Allocate a row for a prompt that the next step computes whole."""
    arguments = {
        "step_tokens": num_tokens - found.num_tokens,
        "footprint": num_tokens,
        "headroom": 0,
        "keys": keys,
        **kwargs,
    }
    done = blocks.allocate(row, found, **arguments)
    blocks.check()
    return done


def retire(blocks: BlockManager, row: int, num_computed: int) -> None:
    blocks.retire(np.array([row]), np.array([num_computed], np.int32), TABLE)
    blocks.check()


def test_the_padding_block_is_never_handed_out():
    blocks = manager(num_blocks=4)
    assert start(blocks, 0, 16)
    (appended,) = blocks.take_appended()
    assert sorted(appended.block_ids.tolist()) == [1, 2, 3, 4]
    assert (appended.rows.tolist(), appended.starts.tolist()) == ([0], [0])
    assert blocks.take_appended()[0].rows.size == 0


def test_a_row_gets_blocks_in_every_group_or_in_none():
    blocks = manager(num_blocks=(16, 3), windows=(None, 8))
    assert start(blocks, 0, 8)
    before = blocks.num_free
    assert not start(blocks, 1, 12)
    assert blocks.num_free == before
    assert all(appended.rows.tolist() == [0] for appended in blocks.take_appended())


def test_a_refusal_gives_shared_blocks_back():
    blocks = manager(num_blocks=8)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 16, keys=keys)
    retire(blocks, 0, 16)
    blocks.free(0)
    assert start(blocks, 1, 12)
    found = blocks.match(keys, TOKENS, 31)
    assert found.num_tokens == 16
    before = blocks.num_free
    assert not start(blocks, 2, 32, found, keys)
    assert blocks.num_free == before
    assert blocks.match(keys, TOKENS, 31) == found


def test_headroom_is_kept_for_running_rows():
    blocks = manager(num_blocks=4)
    assert not start(blocks, 0, 12, headroom=2)
    assert start(blocks, 0, 12, headroom=1)


def test_decodes_cross_block_borders_together_or_not_at_all():
    blocks = manager(num_blocks=3)
    assert start(blocks, 0, 4) and start(blocks, 1, 4)
    rows, positions = np.array([0, 1]), np.array([4, 4], np.int32)
    assert blocks.shortage(rows, positions) == [1]
    before = blocks.num_free
    assert not blocks.extend_decodes(rows, positions)
    assert blocks.num_free == before
    assert blocks.affordable(rows, positions).tolist() == [True, False]
    assert blocks.extend_decodes(rows[:1], positions[:1])
    assert blocks.extend_decodes(rows[:1], np.array([7], np.int32)), "within its block"
    blocks.check()


def test_blocks_outside_the_window_are_released_and_inside_kept():
    """The query at position p sees p-window+1 .. p (ME-06's window, in blocks)."""
    blocks = manager(num_blocks=16, windows=(6,), block_size=4)
    assert start(blocks, 0, 16)
    assert blocks.num_free == [12]
    retire(blocks, 0, 8)  # the next query, at 8, sees 3 .. 8
    assert blocks.num_free == [12]
    retire(blocks, 0, 9)  # at 9: 4 .. 9
    assert blocks.num_free == [13]
    retire(blocks, 0, 16)  # at 16: 11 .. 16
    assert blocks.num_free == [14]
    blocks.free(0)
    assert blocks.usage == 0.0


def test_a_long_row_needs_a_bounded_number_of_window_blocks():
    blocks = manager(num_blocks=16, windows=(6,), block_size=4)
    assert start(blocks, 0, 16)
    used = []
    for end in range(17, 64):
        assert blocks.extend_decodes(np.array([0]), np.array([end - 1], np.int32))
        retire(blocks, 0, end)
        used.append(16 - blocks.num_free[0])
    assert max(used) <= 3


@pytest.mark.parametrize("windows", [(None,), (None, 6), (6, None), (9, 5)])
def test_a_published_prefix_is_found_again(windows):
    blocks = manager(num_blocks=32, windows=windows)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 22, keys=keys)
    retire(blocks, 0, 22)
    assert blocks.match(keys, TOKENS, 22).num_tokens == 20
    assert blocks.match(keys, TOKENS, 19).num_tokens == 16
    other = blocks.keys(PrefixIdentity(cache_salt="other"))
    assert blocks.match(other, TOKENS, 22).num_tokens == 0


def test_a_hit_is_valid_in_every_group():
    """What the window group has forgotten, the full group cannot give."""
    blocks = manager(num_blocks=(16, 6), windows=(None, 6))
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 16, keys=keys)
    retire(blocks, 0, 16)
    blocks.free(0)
    assert blocks.match(keys, TOKENS, 16).num_tokens == 16
    # Four new blocks of the window group cost two old ones: those that left the window first.
    assert start(blocks, 1, 16)
    found = blocks.match(keys, TOKENS, 16)
    assert (found.num_tokens, found.firsts) == (16, (0, 2))
    assert [len(part) for part in found.blocks] == [4, 2]
    # A fifth costs one that the next token would see.
    assert blocks.extend_decodes(np.array([1]), np.array([16], np.int32))
    assert blocks.match(keys, TOKENS, 16).num_tokens == 0


@settings(max_examples=100)
@given(st.data(), st.sampled_from([(5, 4), (6, 4), (9, 2)]))
def test_a_hit_is_the_longest_that_the_blocks_allow(data, shape):
    """Whatever a window group has forgotten in between."""
    window, size = shape
    num_blocks = 12
    (group,) = make_groups(num_blocks, size, (window,))
    keys = BlockKeys(PrefixIdentity(), [size])
    chain = keys.upto(num_blocks, size, TOKENS)
    held = data.draw(st.sets(st.integers(0, num_blocks - 1)))
    cache = PrefixCache(num_blocks + 1)
    cache.insert([chain[i + 1] for i in held], [i + 1 for i in held])
    found = match([GroupView(group.spec, cache)], keys, TOKENS, num_blocks * size)
    lengths = (
        count * size
        for count in range(num_blocks + 1)
        if held >= {*range(max(0, count * size - window + 1) // size, count)}
    )
    assert found.num_tokens == max(lengths)


def test_groups_of_different_block_sizes_agree_on_a_common_length():
    groups = (*make_groups(32, 4, (None,)), *make_groups(32, 6, (None,)))
    blocks = BlockManager(groups, DEMAND)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 30, keys=keys)
    retire(blocks, 0, 30)
    assert blocks.match(keys, TOKENS, 30).num_tokens == 24


def test_a_shared_block_is_freed_once_by_each_holder():
    blocks = manager(num_blocks=16)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 8, keys=keys)
    retire(blocks, 0, 8)
    found = blocks.match(keys, TOKENS, 8)
    assert start(blocks, 1, 9, found, keys.copy())
    assert blocks.num_free == [16 - 3]
    assert blocks.reclaimable(0) == [0] and blocks.reclaimable(1) == [1]
    blocks.free(0)
    blocks.check()
    assert blocks.num_free == [16 - 3]
    blocks.free(1)
    blocks.check()
    assert blocks.num_free == [16]


def test_the_least_recently_used_prefix_is_evicted_from_its_end():
    blocks = manager(num_blocks=6)
    old, new = (blocks.keys(PrefixIdentity(cache_salt=salt)) for salt in "on")
    for row, keys in ((0, old), (1, new)):
        assert start(blocks, row, 12, keys=keys)
        retire(blocks, row, 12)
    blocks.free(0)
    blocks.free(1)
    assert start(blocks, 2, 8)
    assert blocks.match(old, TOKENS, 12).num_tokens == 4
    assert blocks.match(new, TOKENS, 12).num_tokens == 12


def test_suspect_blocks_are_forgotten():
    blocks = manager()
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 12, keys=keys)
    retire(blocks, 0, 12)
    blocks.forget(0)
    assert blocks.match(keys, TOKENS, 12).num_tokens == 0
    blocks.free(0)
    blocks.check()
    assert blocks.match(keys, TOKENS, 12).num_tokens == 0


def test_resetting_the_prefix_cache_spares_blocks_in_use():
    blocks = manager()
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 12, keys=keys)
    retire(blocks, 0, 12)
    blocks.reset_prefix_cache()
    assert blocks.match(keys, TOKENS, 12).num_tokens == 12
    blocks.free(0)
    blocks.reset_prefix_cache()
    blocks.check()
    assert blocks.match(keys, TOKENS, 12).num_tokens == 0


def _shared(blocks: BlockManager, rows: list[int], min_rows=2, min_saved_tokens=4):
    found = blocks.shared_prefixes(
        np.array(rows), min_rows=min_rows, min_saved_tokens=min_saved_tokens
    )
    if found is None:
        return None
    ends = np.cumsum(found.counts)
    groups = np.split(found.rows, ends[:-1])
    return [(sorted(g.tolist()), int(n)) for g, n in zip(groups, found.num_tokens, strict=True)]


def test_rows_with_equal_leading_blocks_are_found_most_rewarding_first():
    blocks = manager(num_blocks=64)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 32, keys=keys)
    retire(blocks, 0, 32)
    for row, max_tokens in ((1, 16), (2, 8)):
        found = blocks.match(blocks.keys(PrefixIdentity()), TOKENS, max_tokens)
        assert start(blocks, row, 32, found, keys=blocks.keys(PrefixIdentity()))
    assert start(blocks, 3, 32)
    # Rows 0 and 1 save 16 tokens; with row 2, all three would save as many with half the prefix.
    assert _shared(blocks, [0, 1, 2, 3]) in ([([0, 1], 16)], [([0, 1, 2], 8)])
    assert _shared(blocks, [1, 2]) == [([1, 2], 8)]
    assert _shared(blocks, [0, 1, 3], min_saved_tokens=17) is None
    assert _shared(blocks, [0, 1, 3], min_rows=3) is None
    assert _shared(blocks, [0, 3]) is None


def test_too_few_rows_with_a_long_prefix_do_not_hide_what_they_share_with_others():
    blocks = manager(num_blocks=64)
    keys = blocks.keys(PrefixIdentity())
    assert start(blocks, 0, 32, keys=keys)
    retire(blocks, 0, 32)
    for row, max_tokens in ((1, 28), (2, 8), (3, 8)):
        found = blocks.match(blocks.keys(PrefixIdentity()), TOKENS, max_tokens)
        assert start(blocks, row, 32, found, keys=blocks.keys(PrefixIdentity()))
    assert _shared(blocks, [0, 1, 2, 3], min_rows=3) == [([0, 1, 2, 3], 8)]


def test_windows_alone_share_no_prefix():
    blocks = manager(num_blocks=16, windows=(8,))
    assert start(blocks, 0, 8)
    assert _shared(blocks, [0], min_rows=1, min_saved_tokens=0) is None
