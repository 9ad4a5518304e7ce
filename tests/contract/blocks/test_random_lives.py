"""Scheduler, block manager and prefix cache survive random lives, in both loops.

``tests/soak/scheduler.py`` runs the same lives for as long as one likes.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.worker import make_groups
from tests.soak.scheduler import RandomLife
from xllm.kv_cache.blocks import BlockManager
from xllm.kv_cache.layout import CacheDemand
from xllm.kv_cache.prefix import PrefixIdentity

_ROWS, _MAX_LEN = 4, 48


@settings(max_examples=12)
@given(st.integers(0, 2**31))
def test_every_answer_of_a_random_life_is_that_of_a_solo_run(seed):
    """Arrivals, aborts, preemptions, failures, resets; ``check`` after every step."""
    assert RandomLife(seed).run(num_events=30) >= 30


_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "grow", "grow", "grow", "free", "forget", "reset"]),
        st.integers(0, _ROWS - 1),
        st.integers(1, 20),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(
    _OPERATIONS,
    st.integers(3, 20),
    st.sampled_from([(None,), (None, 6), (5, None), (3, 9)]),
    st.sampled_from([1, 3, 4]),
)
def test_the_block_manager_keeps_its_books(operations, num_blocks, windows, block_size):
    demand = CacheDemand(max_num_seqs=_ROWS, max_step_tokens=8, max_model_len=_MAX_LEN)
    blocks = BlockManager(make_groups(num_blocks, block_size, windows), demand)
    tokens = np.tile(np.arange(_MAX_LEN, dtype=np.int32) % 3, (_ROWS, 1))
    lengths: dict[int, int] = {}
    for name, row, count in operations:
        if name == "start" and row not in lengths:
            keys = blocks.keys(PrefixIdentity())
            found = blocks.match(keys, tokens[row], count - 1)
            assert found.num_tokens < count
            done = blocks.allocate(
                row,
                found,
                step_tokens=count - found.num_tokens,
                footprint=count,
                headroom=len(lengths),
                keys=keys,
            )
            if done:
                lengths[row] = count
                _retire(blocks, row, count, tokens)
        elif name == "grow" and row in lengths and lengths[row] < _MAX_LEN:
            where = np.array([lengths[row]], np.int32)
            if blocks.extend_decodes(np.array([row]), where):
                lengths[row] += 1
                _retire(blocks, row, lengths[row], tokens)
        elif name in ("free", "forget") and row in lengths:
            del lengths[row]
            if name == "forget":
                blocks.forget(row)
            blocks.free(row)
        elif name == "reset":
            blocks.reset_prefix_cache()
        blocks.check()
    for row in lengths:
        blocks.free(row)
    blocks.check()
    assert blocks.usage == 0.0


def _retire(blocks: BlockManager, row: int, count: int, tokens: np.ndarray) -> None:
    blocks.retire(np.array([row]), np.array([count], np.int32), tokens)
