"""When the KV cache is short: refusal, length at capacity, preemption by recompute."""

import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler.budget import StepDraft, TokenBudget
from xllm.core.request.finish import FinishReason
from xllm.kv_cache.prefix import NO_MATCH

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
TWELVE = [list(range(12)), list(range(100, 112))]


@LOOPS
def test_two_that_need_the_last_block_both_finish(overlap):
    """KV-20."""
    engine = FakeEngine(7, overlap=overlap)
    requests = [make_request(handle, prompt, 8) for handle, prompt in enumerate(TWELVE)]
    for request in requests:
        engine.add(request)
    engine.run(max_steps=200)
    for request in requests:
        answer = engine.answers[request.handle, 0]
        assert (answer.tokens, answer.finish) == (engine.expect(request), FinishReason.LENGTH)
    assert engine.loop.stats().num_preemptions >= 1


@LOOPS
def test_a_prompt_that_can_never_fit_is_refused_and_blocks_nobody(overlap):
    """KV-21."""
    engine = FakeEngine(7, overlap=overlap)
    engine.add(make_request(0, range(36)))
    answer = engine.ask(make_request(1, [1, 2, 3]))
    failure = engine.refusals[0]
    assert (failure.status, failure.param, failure.choice) == (400, "prompt", -1)
    assert "36 tokens" in failure.message and "at most 28" in failure.message
    assert len(answer.tokens) == 8


@LOOPS
def test_a_cap_beyond_the_cache_ends_with_length_at_capacity(overlap):
    """KV-21: the last token needs no slot, so prompt and answer fill the cache and one more."""
    engine = FakeEngine(7, overlap=overlap)
    request = make_request(0, range(20), max_tokens=100)
    other = make_request(1, [5, 6], max_tokens=20)
    engine.add(request)
    engine.add(other)
    engine.run(max_steps=200)
    answer = engine.answers[0, 0]
    assert answer.finish is FinishReason.LENGTH
    assert answer.tokens == engine.expect(request)[: 28 - 20 + 1]
    assert engine.answers[1, 0].tokens == engine.expect(other)


def test_a_prompt_beyond_the_context_names_both_lengths():
    engine = FakeEngine(256, max_model_len=64)
    engine.add(make_request(0, range(65)))
    engine.run()
    assert "65 tokens" in engine.refusals[0].message and "64" in engine.refusals[0].message


def test_a_full_queue_answers_429():
    engine = FakeEngine(max_waiting=2)
    for handle in range(3):
        engine.add(make_request(handle, [1, 2]))
    engine.run()
    assert engine.refusals[2].status == 429
    assert len(engine.answers[1, 0].tokens) == 8


@pytest.mark.parametrize("step", range(1, 22))
@LOOPS
def test_preemption_at_any_step_changes_no_token(overlap, step):
    """KV-22."""
    engine = FakeEngine(overlap=overlap)
    request = make_request(0, range(10), max_tokens=20, seed=3)
    engine.add(request)
    for _ in range(step):
        engine.step()
    if engine.preempt(0):
        assert engine.loop.stats().num_running == 0
    engine.run()
    assert engine.answers[0, 0].tokens == engine.expect(request)


def test_preemption_after_every_step_changes_no_token():
    """KV-22."""
    engine = FakeEngine()
    request = make_request(0, range(10), max_tokens=20)
    engine.add(request)
    num_preemptions = 0
    while engine.scheduler.has_work:
        engine.step()
        num_preemptions += engine.preempt(0)
    assert num_preemptions == 19
    assert engine.answers[0, 0].tokens == engine.expect(request)


@pytest.mark.parametrize("total", [15, 16, 17])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@LOOPS
def test_preemption_around_a_block_edge(overlap, enable_prefix_caching, total):
    """KV-23, KV-24: what is cached is not computed again, and at least one token is."""
    engine = FakeEngine(block_size=4, overlap=overlap, enable_prefix_caching=enable_prefix_caching)
    request = make_request(0, range(10), max_tokens=20)
    engine.add(request)
    while len(engine.answers[0, 0].tokens) < total - 10:
        engine.step()
    assert engine.preempt(0)
    engine.step()
    plan = engine.worker.plans[-1]
    assert plan.new_rows is not None and plan.new_rows.num_tokens.tolist() == [total]
    cached = (total - 1) // 4 * 4 if enable_prefix_caching else 0
    assert plan.num_computed.tolist() == [cached]
    assert plan.num_scheduled.tolist() == [total - cached]
    engine.run()
    assert engine.answers[0, 0].tokens == engine.expect(request)


@LOOPS
def test_a_seeded_request_draws_the_same_after_preemption(overlap):
    """SAM-28."""
    engine = FakeEngine(overlap=overlap)
    request = make_request(0, range(6), max_tokens=12, seed=-(2**63), temperature=1.0)
    engine.add(request)
    while len(engine.answers[0, 0].tokens) < 5:
        engine.step()
    assert engine.preempt(0)
    engine.run()
    assert engine.answers[0, 0].tokens == engine.expect(request)


@LOOPS
def test_a_resume_is_no_prefix_hit(overlap):
    """KV-30."""
    engine = FakeEngine(overlap=overlap)
    engine.ask(make_request(0, range(12)))
    engine.add(make_request(1, range(12)))
    engine.step()
    before = engine.loop.stats()
    assert (before.prefix_queries, before.prefix_hits) == (24, 8)
    for _ in range(4):
        engine.step()
    assert engine.preempt(1)
    engine.run()
    after = engine.loop.stats()
    assert (after.prefix_queries, after.prefix_hits, after.prompt_tokens) == (24, 8, 24)
    assert after.num_preemptions == 1


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_a_victim_leaves_the_step_that_it_was_scheduled_in(policy):
    """KV-33: a chunk of low priority is drafted, then a stream of high priority needs its block."""
    engine = FakeEngine(8, priority_policy="priority", scheduling=policy, max_num_batched_tokens=10)
    high = make_request(0, range(4), max_tokens=20, priority=0)
    low = make_request(1, range(50, 70), max_tokens=4, priority=1)
    engine.add(high)
    engine.step()
    engine.add(low)
    engine.step()  # the low one has computed a part of its prompt
    scheduler = engine.scheduler
    state = scheduler._state
    # Somebody else takes what is left, so that the next border cannot be crossed.
    spare = state.table.peek_free()
    (free,) = state.blocks.num_free
    tokens = 4 * free
    arguments = {"step_tokens": tokens, "footprint": tokens, "headroom": 0, "keys": None}
    assert state.blocks.allocate(spare, NO_MATCH, **arguments)
    draft = StepDraft(TokenBudget(10))
    scheduler._continue(draft)
    victim = next(iter(draft.chunks))
    assert victim.handle == 1 and draft.budget.left < 10
    row = state.table.decode_order()
    known = state.table.num_known[row]
    while state.blocks.extend_decodes(row, known - 1):
        known = known + 1
    rows, known = scheduler._preemption.extend_decodes(draft, row, known)
    draft.decode(rows, known)
    assert not draft.chunks and draft.has_preempted
    assert draft.budget.left == 10 - 1
    assert state.table.num_live == rows.size == 1
    assert victim.row == -1 and len(state.queue) == 1


def test_what_had_its_turn_resumes_before_new_work():
    """KV-35: choices of an earlier request were parked while a later one started."""
    engine = FakeEngine(max_num_seqs=2, priority_policy="priority", max_num_batched_tokens=8)
    late = make_request(1, [7, 8], max_tokens=12)
    engine.add(make_request(0, range(13), max_tokens=6, n=3))
    engine.add(late)
    engine.step()
    engine.step()  # the rest of the prompt, and beside it the late request
    assert engine.answers[1, 0].started is not None
    assert engine.loop.stats().num_waiting == 2  # the other choices, which came before it
    assert engine.preempt(1)
    engine.step()
    assert engine.answers[0, 1].started is None, "new work overtook a preempted sequence"
    assert engine.loop.stats().num_running == 2
    engine.run()
    assert engine.answers[1, 0].tokens == engine.expect(late)


def test_lower_priority_numbers_run_first():
    engine = FakeEngine(max_num_seqs=1, priority_policy="priority")
    finished = []
    for handle, priority in enumerate([2, 0, 1]):
        engine.add(make_request(handle, [handle + 1], max_tokens=2, priority=priority))
    while engine.scheduler.has_work:
        engine.step()
        done = [h for (h, _), answer in engine.answers.items() if answer.finish]
        finished += [handle for handle in done if handle not in finished]
    assert finished == [1, 2, 0]


def test_priorities_are_ignored_under_fcfs():
    engine = FakeEngine(max_num_seqs=1)
    engine.add(make_request(0, [1], max_tokens=2, priority=9))
    engine.add(make_request(1, [2], max_tokens=2, priority=0))
    engine.step()
    assert engine.answers[0, 0].tokens and not engine.answers[1, 0].tokens
    engine.run()


def test_a_prompt_is_not_split_without_chunked_prefill():
    engine = FakeEngine(enable_chunked_prefill=False, max_num_batched_tokens=16)
    requests = [make_request(handle, range(12), 2) for handle in range(3)]
    requests.append(make_request(9, range(40), 2))  # longer than any step: it must be split
    for request in requests:
        engine.add(request)
    engine.run()
    for plan in engine.worker.plans:
        if plan.new_rows is not None and 40 not in plan.new_rows.num_tokens:
            assert plan.samples.all()
    for request in requests:
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)
