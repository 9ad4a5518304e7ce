"""Decoding rows are named longest first, and all that follows a plan goes by its order."""

import numpy as np
import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler import order
from xllm.control.scheduler.order import LongestFirst

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])


def _decode_lengths(plan):
    decodes = (plan.num_scheduled == 1) & plan.samples & (plan.num_computed > 0)
    count = len(decodes) if decodes.all() else int(np.argmin(decodes))
    return plan.num_computed[:count]


@LOOPS
def test_the_longest_rows_decode_first_while_requests_come_and_go(overlap):
    rng = np.random.default_rng(5)
    engine = FakeEngine(256, overlap=overlap, max_num_seqs=8, max_num_batched_tokens=48)
    requests = [
        make_request(
            handle,
            rng.integers(0, 1000, rng.integers(2, 60)).tolist(),
            int(rng.integers(2, 40)),
            temperature=float(handle % 2),
            seed=handle,
            logprobs=1 if handle % 3 else None,
        )
        for handle in range(24)
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)
    full = [plan for plan in engine.worker.plans if len(_decode_lengths(plan)) > 2]
    assert len(full) > 20
    assert all((np.diff(_decode_lengths(plan)) <= 0).all() for plan in full)
    # By arrival, which is how rows are preempted, they would not be in this order.
    assert any((np.diff(plan.rows[: len(_decode_lengths(plan))]) < 0).any() for plan in full)


def test_preemption_still_takes_the_last_to_arrive():
    """The first request is the shortest row, so it is named last; it must not be the victim."""
    engine = FakeEngine(18, max_num_seqs=3, max_num_batched_tokens=64, enable_prefix_caching=False)
    requests = [make_request(0, range(3), 40), make_request(1, range(8, 20), 30)]
    requests.append(make_request(2, range(30, 52), 20))
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    restarted = [
        prompt_len
        for plan in engine.worker.plans
        if plan.new_rows is not None
        for prompt_len, known in zip(
            plan.new_rows.prompt_lens.tolist(), plan.new_rows.num_tokens.tolist(), strict=True
        )
        if known > prompt_len
    ]
    assert restarted and 3 not in restarted
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)


def test_a_steady_step_sorts_nothing(monkeypatch):
    calls = []
    argsort = np.argsort

    def counted(*args, **options):
        calls.append(args)
        return argsort(*args, **options)

    monkeypatch.setattr(order.np, "argsort", counted)
    longest = LongestFirst()
    rows, known = np.array([4, 0, 7]), np.array([5, 9, 9], np.int32)
    first, lengths = longest.sort(rows, known)
    assert first.tolist() == [0, 7, 4] and lengths.tolist() == [9, 9, 5]
    again, lengths = longest.sort(rows, known + 1)
    assert again is first and lengths.tolist() == [10, 10, 6] and len(calls) == 1
    changed, lengths = longest.sort(rows[1:], known[1:])
    assert changed.tolist() == [0, 7] and len(calls) == 2


def test_more_rows_than_an_order_helps_stay_as_they_are():
    rows = np.arange(order.MAX_SORTED_ROWS + 1)
    known = rows.astype(np.int32)
    kept, lengths = LongestFirst().sort(rows, known)
    assert kept is rows and lengths is known
