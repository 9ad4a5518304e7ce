"""With a backlog, the prompt that takes the last row ends the step at a size without padding."""

from bisect import bisect_left

import numpy as np
import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler import admission

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
SIZES = (16, 32, 48, 64, 96, 128)


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch):
    monkeypatch.setattr(admission, "MIN_CUT_TOKENS", 4)


def _engine(sizes=SIZES, **options):
    options = {"max_num_seqs": 6, "max_num_batched_tokens": 128, **options}
    return FakeEngine(512, worker={"step_sizes": sizes}, **options)


def _requests(count, seed=4):
    rng = np.random.default_rng(seed)
    return [
        make_request(
            handle,
            rng.integers(0, 1000, rng.integers(20, 100)).tolist(),
            int(rng.integers(2, 12)),
            temperature=float(handle % 2),
            seed=handle,
        )
        for handle in range(count)
    ]


def _run(engine, requests):
    for request in requests:
        engine.add(request)
    engine.run()
    engine.scheduler.check()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)
    sums = [int(p.num_scheduled.sum()) for p in engine.worker.plans if p.num_scheduled.max() > 1]
    return sum(SIZES[bisect_left(SIZES, total)] - total for total in sums), len(sums)


@LOOPS
@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_a_backlog_is_padded_less_and_answered_alike(overlap, policy):
    padding, steps = _run(_engine((), overlap=overlap, scheduling=policy), _requests(60))
    less, more_steps = _run(_engine(overlap=overlap, scheduling=policy), _requests(60))
    if policy == "decode_first":
        assert less < padding / 2 and more_steps <= steps * 1.5
    else:  # what streams will take is not known when prompts start
        assert less <= padding


def _second_step(waiting, prompt_len, **options):
    """Tokens of the step that fills the last of two rows, with ``waiting`` requests in all."""
    engine = _engine(max_num_seqs=2, **options)
    engine.add(make_request(0, range(5), 40))
    engine.step()
    for handle in range(1, 1 + waiting):
        engine.add(make_request(handle, range(100, 100 + prompt_len), 4))
    engine.step()
    return int(engine.worker.plans[1].num_scheduled.sum())


def test_the_cut_fills_a_size():
    assert _second_step(2, 39) == 32  # one stream and 39 tokens: 8 less


@pytest.mark.parametrize(
    ("why", "total", "waiting", "prompt_len", "options"),
    [
        ("nobody waits behind it", 40, 1, 39, {}),
        ("it fits", 48, 2, 47, {}),
        ("hardly any padding", 45, 2, 44, {}),
        ("hardly anything would be left", 18, 2, 17, {"sizes": (4, 64)}),
        ("below the least size", 12, 2, 11, {}),
        ("no size is told", 40, 2, 39, {"sizes": ()}),
        ("prompts are not split", 40, 2, 39, {"enable_chunked_prefill": False}),
    ],
)
def test_what_is_not_cut(why, total, waiting, prompt_len, options):
    assert _second_step(waiting, prompt_len, **options) == total, why


def test_rows_that_stay_free_cut_nothing():
    engine = _engine(max_num_seqs=4)
    engine.add(make_request(0, range(5), 40))
    engine.step()
    for handle in (1, 2):
        engine.add(make_request(handle, range(100 * handle, 100 * handle + 39), 4))
    engine.step()
    assert int(engine.worker.plans[1].num_scheduled.sum()) == 1 + 39 + 39
