"""Beside many decoding rows, prompts wait a step or two for others to fill a step with."""

import numpy as np
import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler.full_steps import MAX_HELD_STEPS, FullSteps
from xllm.control.scheduler.queues import WaitingQueue

FULL = 64
NUM_DECODING = 12
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])


def test_a_step_with_prompts_is_a_whole_multiple():
    steps = FullSteps(FULL, 256)
    assert steps.size(NUM_DECODING, [30, 30]) == 64
    assert steps.size(NUM_DECODING, [200]) == 192
    assert steps.size(NUM_DECODING, [100_000]) == 256


def test_too_few_prompt_tokens_wait_for_others_and_not_for_ever():
    steps = FullSteps(FULL, 256)
    for _ in range(2):
        for _ in range(MAX_HELD_STEPS):
            assert steps.size(NUM_DECODING, [30]) is None
        assert steps.size(NUM_DECODING, [30]) == 256
    assert steps.size(NUM_DECODING, [30]) is None
    assert steps.size(NUM_DECODING, [30, 40]) == 64  # company came
    assert steps.size(NUM_DECODING, [30]) is None  # the patience is new


def test_a_multiple_that_leaves_hardly_a_place_beside_the_streams_is_not_taken():
    steps = FullSteps(FULL, 256)
    assert steps.size(60, [20]) is None
    assert steps.size(60, [70]) == 128
    assert steps.size(48, [20]) == 64


@pytest.mark.parametrize(
    ("why", "full_step", "num_decoding", "prompts"),
    [
        ("few streams: a first token is worth more", FULL, FULL // 8 - 1, [30]),
        ("no prompt", FULL, NUM_DECODING, []),
        ("no size is better than another", 0, NUM_DECODING, [30]),
        ("no step is so large", 512, NUM_DECODING, [30]),
        ("streams alone take every token", FULL, 256, [30]),
        ("a multiple leaves no place, and company would find none", FULL, 250, [30]),
    ],
)
def test_what_never_waits(why, full_step, num_decoding, prompts):
    assert FullSteps(full_step, 256).size(num_decoding, prompts) == 256, why


def test_prompts_are_read_only_as_far_as_the_step_reaches():
    prompts = iter([300, 1])
    assert FullSteps(FULL, 256).size(NUM_DECODING, prompts) == 256
    assert list(prompts) == [1]


def test_the_queue_tells_its_turns_without_changing():
    rng = np.random.default_rng(3)
    engine = _engine(max_num_seqs=1, priority_policy="priority")
    for handle, priority in enumerate(rng.integers(0, 4, 40).tolist()):
        engine.add(make_request(handle, range(4), 4, priority=priority))
    for handle in rng.choice(40, 15, replace=False).tolist():
        engine.scheduler.abort(handle)
    queue: WaitingQueue = engine.scheduler._state.queue
    told = list(queue.in_turn())
    assert len(told) == len(queue)
    popped = []
    while (sequence := queue.peek()) is not None:
        popped.append(sequence)
        queue.pop()
    assert told == popped


def _engine(full_step=FULL, **options):
    options = {"max_num_seqs": NUM_DECODING + 4, "max_num_batched_tokens": 256, **options}
    return FakeEngine(2048, worker={"full_step": full_step}, **options)


def _requests(count, seed=4):
    rng = np.random.default_rng(seed)
    return [
        make_request(
            handle,
            rng.integers(0, 1000, rng.integers(5, 30)).tolist(),
            int(rng.integers(10, 40)),
            temperature=float(handle % 2),
            seed=handle,
        )
        for handle in range(count)
    ]


def _mixed_sums(engine, requests):
    """Tokens of every step that carries prompts beside an eighth of a full step of streams."""
    for request in requests:
        engine.add(request)
    engine.run()
    engine.scheduler.check()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)
    return [
        int(plan.num_scheduled.sum())
        for plan in engine.worker.plans
        if plan.num_scheduled.max() > 1 and np.count_nonzero(plan.num_scheduled == 1) >= FULL // 8
    ]


@LOOPS
def test_with_a_backlog_most_steps_with_prompts_are_full_and_answers_stay(overlap):
    options = {"overlap": overlap, "max_num_seqs": 40}
    shares = []
    for full_step in (0, FULL):
        sums = np.array(_mixed_sums(_engine(full_step, **options), _requests(200)))
        shares.append(np.mean(sums % FULL == 0))
    assert shares[0] < 0.2 and shares[1] > 0.7


@LOOPS
@pytest.mark.parametrize(
    "options", [{"scheduling": "prefill_first"}, {"enable_chunked_prefill": False}], ids=str
)
def test_prompts_that_go_first_or_are_never_split_do_not_wait(overlap, options):
    plain = _mixed_sums(_engine(0, overlap=overlap, **options), _requests(60))
    assert _mixed_sums(_engine(overlap=overlap, **options), _requests(60)) == plain


def test_a_lone_prompt_beside_many_streams_waits_no_longer_than_said():
    engine = _engine()
    for handle in range(NUM_DECODING):
        engine.add(make_request(handle, range(5), 60))
    engine.step()
    engine.step()
    engine.add(make_request(99, range(100, 109), 4))
    for _ in range(MAX_HELD_STEPS):
        engine.step()
        assert engine.worker.plans[-1].num_scheduled.max() == 1
    engine.step()
    assert engine.worker.plans[-1].num_scheduled.max() == 9
