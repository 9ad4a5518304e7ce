"""Every scheduling policy keeps the budgets and starves nobody."""

import random

import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler.policies import POLICIES
from xllm.control.scheduler.policies.base import Phase, RunningLoad

POLICY = pytest.mark.parametrize("policy", POLICIES.names())
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])

# The longest that a running stream may go without a token while others are served.
MAX_STEPS_BETWEEN_TOKENS = 10


def test_the_catalogue_is_not_empty():
    assert {"decode_first", "prefill_first"} <= set(POLICIES.names())


@POLICY
def test_every_phase_is_listed_once(policy):
    chosen = POLICIES.load(policy).Policy()
    for stalled in range(12):
        order = chosen.order(3, RunningLoad(2, 1, stalled), 64)
        assert sorted(phase.name for phase in order) == sorted(phase.name for phase in Phase)


@POLICY
@LOOPS
@pytest.mark.parametrize("budget", [4, 17, 64])
def test_budgets_are_never_exceeded(policy, overlap, budget):
    draw = random.Random(budget)
    engine = FakeEngine(
        24, overlap=overlap, scheduling=policy, max_num_batched_tokens=budget, max_num_seqs=5
    )
    requests = [
        make_request(handle, range(draw.randint(1, 40)), draw.randint(1, 20))
        for handle in range(25)
    ]
    for request in requests:
        engine.add(request)
        engine.step()
    engine.run()
    for plan in engine.worker.plans:
        assert 0 < plan.num_scheduled.sum() <= budget
        assert len(plan.rows) <= 5
        assert (plan.num_scheduled > 0).all()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)


@POLICY
@LOOPS
def test_streams_go_on_under_a_flood_of_prompts(policy, overlap):
    engine = FakeEngine(
        400, overlap=overlap, scheduling=policy, max_num_batched_tokens=16, max_num_seqs=12
    )
    streams = [make_request(handle, [handle], 60) for handle in range(4)]
    for request in streams:
        engine.add(request)
    engine.step()
    handle, silent, longest = 100, [0] * 4, 0
    while not all(engine.answers[request.handle, 0].finish for request in streams):
        handle += 1
        engine.add(make_request(handle, range(40), 2))
        before = [len(engine.answers[index, 0].tokens) for index in range(4)]
        engine.step()
        for index in range(4):
            answer = engine.answers[index, 0]
            still = len(answer.tokens) == before[index] and not answer.finish
            silent[index] = silent[index] + 1 if still else 0
        longest = max(longest, *silent)
    assert longest <= MAX_STEPS_BETWEEN_TOKENS
    for entry in list(engine.scheduler._state.requests):
        engine.loop.abort(entry)
    engine.run()


@POLICY
@LOOPS
@pytest.mark.parametrize("windows", [(None,), (None, 8)], ids=["full", "composite"])
def test_a_long_prompt_is_not_overtaken_for_ever(policy, overlap, windows):
    """Under fcfs, sequences start in the order of their arrival, short ones or not."""
    engine = FakeEngine(
        30, windows=windows, overlap=overlap, scheduling=policy, max_num_batched_tokens=16
    )
    started = []
    for handle in range(40):
        engine.add(make_request(handle, range(100 if handle == 5 else 4), 8))
        engine.step()
        fresh = [h for (h, _), answer in engine.answers.items() if answer.started]
        started += sorted(set(fresh) - set(started))
    engine.run()
    started += sorted(set(range(40)) - set(started))
    assert started == list(range(40))
    assert len(engine.answers[5, 0].tokens) == 8


@POLICY
@LOOPS
def test_a_prompt_that_had_to_be_split_is_not_overtaken_for_ever(policy, overlap):
    """Without chunked prefill: what is left of it fits a step, but never beside what runs."""
    engine = FakeEngine(
        400,
        overlap=overlap,
        scheduling=policy,
        max_num_batched_tokens=16,
        enable_chunked_prefill=False,
    )
    engine.add(make_request(0, [1], 100))
    engine.step()
    long = make_request(1, range(15 + 16), 2)
    engine.add(long)
    for handle in range(2, 80):
        engine.add(make_request(handle, range(handle, handle + 4), 8))
        engine.step()
    assert engine.answers[1, 0].finish, "still not computed"
    engine.run()
    assert engine.answers[1, 0].tokens == engine.expect(long)
