"""How sequences end: stop tokens, aborts in every state, failures."""

import random

import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.engine import EngineDeadError
from xllm.core.request.finish import FinishReason

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])


@LOOPS
def test_a_stop_token_ends_the_answer_and_is_part_of_it(overlap):
    engine = FakeEngine(overlap=overlap, worker={"scripts": {5: [10, 11, 2, 12, 13]}})
    answer = engine.ask(make_request(0, range(6), seed=5, stop_token_ids=(2, 7)))
    assert answer.tokens == [10, 11, 2]
    assert (answer.finish, answer.stop_token) == (FinishReason.STOP, 2)


@LOOPS
def test_a_stop_token_of_one_request_does_not_stop_another(overlap):
    engine = FakeEngine(overlap=overlap, worker={"scripts": {5: [2, 2, 2], 6: [2, 3, 2]}})
    engine.add(make_request(0, range(6), 3, seed=5, stop_token_ids=(3,)))
    engine.add(make_request(1, range(6), 3, seed=6, stop_token_ids=(3,)))
    engine.add(make_request(2, range(6), 3, seed=5, stop_token_ids=(2,)))
    engine.run()
    assert [engine.answers[handle, 0].tokens for handle in range(3)] == [[2, 2, 2], [2, 3], [2]]


@LOOPS
def test_stop_tokens_do_not_count_before_min_tokens(overlap):
    engine = FakeEngine(overlap=overlap, worker={"scripts": {5: [2, 2, 2, 2, 2]}})
    answer = engine.ask(make_request(0, [1], seed=5, stop_token_ids=(2,), min_tokens=3))
    assert answer.tokens == [2, 2, 2, 2]


@LOOPS
def test_a_stop_on_the_last_allowed_token_is_a_stop(overlap):
    engine = FakeEngine(overlap=overlap, worker={"scripts": {5: [8, 2]}})
    answer = engine.ask(make_request(0, [1], 2, seed=5, stop_token_ids=(2,)))
    assert (answer.tokens, answer.finish) == ([8, 2], FinishReason.STOP)


@LOOPS
def test_length_is_known_by_count_and_never_exceeded(overlap):
    """A step is not spent on a token that would be thrown away."""
    engine = FakeEngine(overlap=overlap)
    engine.ask(make_request(0, range(5), 6))
    assert sum(int(plan.samples.sum()) for plan in engine.worker.plans) == 6


def test_a_late_result_is_dropped_and_its_blocks_wait_for_the_step():
    """The step after a stop is in flight when the stop is seen."""
    engine = FakeEngine(overlap=True, worker={"scripts": {5: [10, 2, 99, 99]}})
    engine.add(make_request(0, range(6), 8, seed=5, stop_token_ids=(2,)))
    while not engine.answers[0, 0].finish:
        engine.step()
    assert engine.scheduler.has_work
    assert engine.loop.stats().kv_usage > 0.0 and engine.loop.stats().num_running == 0
    engine.step()
    assert not engine.scheduler.has_work and engine.loop.stats().kv_usage == 0.0
    assert engine.answers[0, 0].tokens == [10, 2]


@LOOPS
@pytest.mark.parametrize("stopped", [False, True])
def test_an_abort_tells_its_reason_once(overlap, stopped):
    engine = FakeEngine(overlap=overlap)
    engine.add(make_request(0, range(6), 8, n=2))
    for _ in range(3):
        engine.step()
    engine.loop.abort(0, 1, stopped)
    engine.loop.abort(0, 1, stopped)
    engine.loop.abort(77)
    engine.run()
    assert engine.answers[0, 1].finish is (FinishReason.STOP if stopped else FinishReason.ABORT)
    assert engine.answers[0, 0].finish is FinishReason.LENGTH


def _in_state(name: str, overlap: bool) -> FakeEngine:
    """An engine with request 0 in the named state."""
    engine = FakeEngine(
        overlap=overlap, max_num_seqs=2, max_num_batched_tokens=4, enable_prefix_caching=False
    )
    if name == "waiting":
        engine.add(make_request(1, range(4), 20))
        engine.add(make_request(2, range(4), 20))
        for _ in range(3):
            engine.step()
    engine.add(make_request(0, range(10), 3, n=3 if name == "parked" else 1))
    steps = {"waiting": 1, "parked": 1, "half prefilled": 2, "running": 4, "preempted": 4}
    if name == "finishing":
        while len(engine.answers[0, 0].tokens) < 2:
            engine.step()
    for _ in range(steps.get(name, 0)):
        engine.step()
    if name == "preempted":
        assert engine.preempt(0)
    return engine


@LOOPS
@pytest.mark.parametrize(
    "state", ["waiting", "parked", "half prefilled", "running", "preempted", "finishing"]
)
def test_an_abort_frees_everything_in_every_state(overlap, state):
    """KV-31."""
    engine = _in_state(state, overlap)
    for handle in {handle for handle, _ in engine.answers}:
        engine.loop.abort(handle)
    engine.run()
    stats = engine.loop.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
    assert all(answer.finish is FinishReason.ABORT for answer in engine.answers.values())
    assert engine.scheduler._state.table.num_free == 2


@LOOPS
def test_two_thousand_random_schedules_with_aborts_leave_nothing(overlap):
    """KV-31. One engine through 1,000 schedules, whose rows and blocks must all come back."""
    draw = random.Random(1)
    engine = FakeEngine(12, overlap=overlap, max_num_batched_tokens=8, max_num_seqs=3)
    free = engine.scheduler._state.blocks.num_free
    check, engine.scheduler.check = engine.scheduler.check, lambda: None
    handle = 0
    for _ in range(1000):
        handles = range(handle, handle + draw.randint(1, 3))
        for handle in handles:
            engine.add(make_request(handle, range(draw.randint(1, 24)), draw.randint(0, 6)))
        for _ in range(draw.randint(0, 4)):
            engine.step()
        for handle in handles:
            engine.loop.abort(handle)
        engine.run()
        assert engine.scheduler._state.blocks.num_free == free
        assert engine.scheduler._state.table.num_free == 3
        handle += 1
    check()


@LOOPS
def test_gauges_are_zero_after_a_mass_abort(overlap):
    """KV-40."""
    engine = FakeEngine(overlap=overlap)
    for handle in range(12):
        engine.add(make_request(handle, range(9), 50))
    for _ in range(5):
        engine.step()
    assert engine.loop.stats().num_running == 8
    for handle in range(12):
        engine.loop.abort(handle)
    engine.run()
    stats = engine.loop.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage, stats.idle) == (0, 0, 0.0, True)


def test_aborted_requests_that_never_had_their_turn_take_no_memory():
    """Others always come first: what was aborted behind them never comes to the queue's head."""
    engine = FakeEngine(priority_policy="priority", max_num_seqs=1)
    engine.add(make_request(0, range(6), 40))
    engine.step()
    engine.add(make_request(1, range(6), 2, priority=-1))
    for handle in range(2, 2000):
        engine.add(make_request(handle, range(6), 2, priority=handle % 7))
        if handle >= 12:
            engine.loop.abort(handle)
    assert len(engine.scheduler._state.queue) == 11
    assert len(engine.scheduler._state.queue._heap) < 100
    engine.scheduler.check()
    engine.run()
    assert all(engine.answers[handle, 0].finish is FinishReason.LENGTH for handle in range(12))


@LOOPS
def test_a_row_that_fails_in_sampling_ends_alone(overlap):
    """KV-41: its blocks come back and are not shared, the others go on."""
    engine = FakeEngine(overlap=overlap, worker={"fail_at": {(5, 3)}})
    bad = make_request(0, range(8), 9, seed=5)
    good = make_request(1, range(20, 28), 9, seed=6)
    engine.add(bad)
    engine.add(good)
    engine.run()
    answer = engine.answers[0, 0]
    assert answer.tokens == engine.expect(bad)[:3]
    assert answer.finish is FinishReason.ERROR
    assert (answer.failure.message, answer.failure.status) == ("logits are NaN", 500)
    assert engine.answers[1, 0].tokens == engine.expect(good)
    assert engine.loop.stats().kv_usage == 0.0
    again = engine.ask(make_request(2, range(8), 3, seed=6))
    assert again.started.num_cached_tokens == 0
    assert again.finish is FinishReason.LENGTH


@LOOPS
@pytest.mark.parametrize("in_execute", [False, True])
def test_a_step_that_raises_once_costs_nobody_an_answer(overlap, in_execute):
    engine = FakeEngine(overlap=overlap, worker={"raise_at": {4: in_execute}}, max_num_seqs=2)
    requests = [make_request(handle, [handle, 9], 8) for handle in range(4)]
    for request in requests:
        engine.add(request)
    engine.run()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)
    stats = engine.loop.stats()
    assert (stats.kv_usage, stats.num_preemptions) == (0.0, 0)


@LOOPS
@pytest.mark.parametrize("in_execute", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 20}])
def test_a_request_that_makes_steps_raise_fails_alone(overlap, in_execute, options):
    bad_seeds = {50: in_execute, 51: in_execute}
    engine = FakeEngine(overlap=overlap, worker={"raise_for": bad_seeds}, **options)
    good = [
        make_request(handle, range(handle, handle + 11), 12, seed=handle) for handle in range(6)
    ]
    bad = [make_request(seed, range(9), 12, seed=seed) for seed in bad_seeds]
    for request in (*good[:3], bad[0], *good[3:]):
        engine.add(request)
    for _ in range(9):
        engine.step()
    engine.add(bad[1])
    engine.run()
    for request in bad:
        answer = engine.answers[request.handle, 0]
        assert answer.finish is FinishReason.ERROR and "injected" in answer.failure.message
        assert answer.tokens == []
    for request in good:
        answer = engine.answers[request.handle, 0]
        assert (answer.tokens, answer.failure) == (engine.expect(request), None)
    assert engine.loop.stats().kv_usage == 0.0


@LOOPS
def test_a_sequence_is_tried_a_few_times_only(overlap):
    engine = FakeEngine(overlap=overlap, worker={"raise_at": dict.fromkeys(range(2, 400), False)})
    requests = [make_request(handle, [handle, 9], 8, n=2) for handle in range(3)]
    for request in requests:
        engine.add(request)
    engine.run()
    assert all(answer.finish is FinishReason.ERROR for answer in engine.answers.values())
    assert len(engine.worker.plans) < 60
    assert engine.loop.stats().kv_usage == 0.0


@LOOPS
def test_a_worker_that_cannot_go_on_ends_the_engine(overlap):
    engine = FakeEngine(overlap=overlap, worker={"raise_at": {1: True}})
    engine.worker.healthy = False
    engine.add(make_request(0, [1], 8))
    engine.worker.execute = _always_raise
    with pytest.raises(EngineDeadError, match="device lost"):
        engine.run()


def _always_raise(plan):
    raise RuntimeError("device lost")


@LOOPS
def test_logprobs_stay_with_their_tokens_when_others_are_dropped(overlap):
    engine = FakeEngine(overlap=overlap)
    for handle in range(4):
        engine.add(make_request(handle, [handle], 10, logprobs=None if handle == 1 else 0))
    for _ in range(4):
        engine.step()
    engine.loop.abort(0)
    engine.loop.abort(2)
    engine.run()
    solo = FakeEngine(overlap=overlap).ask(make_request(3, [3], 10, logprobs=0))
    assert engine.answers[3, 0].logprobs == solo.logprobs and len(solo.logprobs) == 10
    assert engine.answers[1, 0].logprobs == []


def test_a_handle_in_use_is_an_error_of_the_caller():
    engine = FakeEngine()
    engine.add(make_request(0, [1]))
    with pytest.raises(ValueError, match="handle 0 is in use"):
        engine.scheduler.add(make_request(0, [1]))


def test_unknown_policies_are_named():
    with pytest.raises(ValueError, match="known: decode_first, prefill_first"):
        FakeEngine(scheduling="random")
    with pytest.raises(ValueError, match="fcfs, priority"):
        FakeEngine(priority_policy="random")
