"""Prefix reuse, and several choices of one request."""

import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.control.scheduler import admission
from xllm.core.request.finish import FinishReason
from xllm.kv_cache.prefix import keys

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
WINDOWS = pytest.mark.parametrize("windows", [(None,), (None, 6)], ids=["full", "composite"])


@LOOPS
@WINDOWS
@pytest.mark.parametrize("prompt_len", [4, 8, 16, 17, 31])
def test_a_cached_prompt_computes_its_last_block_or_tail_only(overlap, windows, prompt_len):
    """KV-25: at least one token is computed, and the answer is that of a cold cache."""
    engine = FakeEngine(overlap=overlap, windows=windows)
    request = make_request(0, range(prompt_len))
    cold = engine.ask(request)
    engine.worker.plans.clear()
    warm = engine.ask(make_request(1, range(prompt_len)))
    cached = (prompt_len - 1) // 4 * 4
    assert engine.worker.plans[0].num_computed.tolist() == [cached]
    assert engine.worker.plans[0].num_scheduled.tolist() == [prompt_len - cached]
    assert warm.started.num_cached_tokens == cached
    assert cold.tokens == warm.tokens == engine.expect(request)


@LOOPS
@WINDOWS
@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_the_next_turn_reuses_only_what_was_computed(overlap, windows, max_tokens):
    """The last token of an answer was returned but never computed: its block is not full."""
    engine = FakeEngine(overlap=overlap, windows=windows)
    first = engine.ask(make_request(0, range(7), max_tokens))
    turn = make_request(1, [*range(7), *first.tokens, 900, 901], 6)
    second = engine.ask(turn)
    assert second.tokens == engine.expect(turn)
    computed = 7 + max_tokens - 1
    assert second.started.num_cached_tokens == computed // 4 * 4


def test_salts_do_not_share():
    engine = FakeEngine()
    engine.ask(make_request(0, range(12), cache_salt="a"))
    assert engine.ask(make_request(1, range(12), cache_salt="b")).started.num_cached_tokens == 0
    assert engine.ask(make_request(2, range(12))).started.num_cached_tokens == 0
    assert engine.ask(make_request(3, range(12), cache_salt="a")).started.num_cached_tokens == 8


def test_a_reset_cache_is_cold():
    engine = FakeEngine()
    engine.ask(make_request(0, range(12)))
    engine.scheduler.reset_prefix_cache()
    assert engine.ask(make_request(1, range(12))).started.num_cached_tokens == 0


def test_without_prefix_caching_requests_do_not_share():
    engine = FakeEngine(enable_prefix_caching=False)
    engine.ask(make_request(0, range(12)))
    assert engine.ask(make_request(1, range(12))).started.num_cached_tokens == 0
    stats = engine.loop.stats()
    assert stats.prefix_queries == stats.prefix_hits == 0


@LOOPS
@WINDOWS
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("prompt_len", [3, 4, 10, 16])
def test_choices_share_full_blocks_and_recompute_the_tail(
    overlap, windows, enable_prefix_caching, prompt_len
):
    """KV-37: the choices equal solo runs with seeds s, s+1, s+2."""
    engine = FakeEngine(
        overlap=overlap, windows=windows, enable_prefix_caching=enable_prefix_caching
    )
    request = make_request(0, range(prompt_len), 9, seed=41, n=3)
    engine.add(request)
    engine.run()
    shared = (prompt_len - 1) // 4 * 4
    for choice in range(3):
        answer = engine.answers[0, choice]
        assert answer.tokens == engine.expect(request, choice)
        assert answer.started.num_cached_tokens == (shared if choice else 0)
    assert engine.loop.stats().kv_usage == 0.0
    assert engine.loop.stats().prompt_tokens == prompt_len


def test_choices_hold_each_shared_block_once():
    engine = FakeEngine(num_blocks=64)
    engine.add(make_request(0, range(18), 9, n=4))
    for _ in range(3):
        engine.step()
    stats = engine.loop.stats()
    assert stats.num_running == 4
    # 4 shared blocks, and one tail each
    assert round(stats.kv_usage * 64) == 4 + 4


@LOOPS
def test_another_choice_leads_when_the_leader_is_cancelled(overlap):
    engine = FakeEngine(overlap=overlap, max_num_batched_tokens=4)
    request = make_request(0, range(12), 6, n=3, prompt_logprobs=1)
    engine.add(request)
    engine.step()
    engine.loop.abort(0, choice=0)
    engine.run()
    assert engine.answers[0, 0].finish is FinishReason.ABORT
    for choice in (1, 2):
        assert engine.answers[0, choice].tokens == engine.expect(request, choice)


@LOOPS
@pytest.mark.parametrize("budget", [7, 100])
@pytest.mark.parametrize("preempt_at", [None, 3, 9])
def test_prompt_logprobs_come_once_and_whole(overlap, budget, preempt_at):
    """KV-38: in chunks of 7, cold and warm, preempted or not; the first token has none."""
    engine = FakeEngine(overlap=overlap, max_num_batched_tokens=budget)
    prompts = {}
    for handle in range(3):
        request = make_request(handle, range(100), 3, prompt_logprobs=0, n=1 + handle % 2)
        engine.add(request)
        for step in range(1000):
            if not engine.scheduler.has_work:
                break
            engine.step()
            if step == preempt_at:
                engine.preempt(handle)
        entries = engine.prompt_logprobs[handle]
        prompts[handle] = [value for part in entries for value in part.logprobs[:, 0].tolist()]
        tokens = [token for part in entries for token in part.token_ids[:, 0].tolist()]
        assert tokens == list(range(1, 100))
        assert engine.answers[handle, 0].tokens == engine.expect(request)
        assert engine.answers[handle, 0].started.num_cached_tokens == 0
    assert prompts[0] == prompts[1] == prompts[2]


@LOOPS
@WINDOWS
def test_a_scoring_request_ends_after_its_prompt(overlap, windows):
    engine = FakeEngine(overlap=overlap, windows=windows, max_num_batched_tokens=5)
    answer = engine.ask(make_request(0, range(12), 0, prompt_logprobs=0))
    assert (answer.tokens, answer.finish) == ([], FinishReason.LENGTH)
    assert sum(len(part.ranks) for part in engine.prompt_logprobs[0]) == 11
    assert not any(plan.samples.any() for plan in engine.worker.plans)
    assert engine.loop.stats().generation_tokens == 0


@LOOPS
def test_a_prompt_waits_for_one_that_computes_its_beginning(overlap, monkeypatch):
    monkeypatch.setattr(admission, "_MIN_FOLLOWED_TOKENS", 8)
    engine = FakeEngine(overlap=overlap)
    prompts = [[*range(12), 50 + i] for i in range(3)]
    requests = [make_request(i, prompt) for i, prompt in enumerate(prompts)]
    other = make_request(9, range(20, 33))
    for request in (*requests, other):
        engine.add(request)
    engine.run()
    first, *_ = engine.worker.plans
    assert first.num_scheduled.tolist() == [13, 13], "the first of its kind, and an unlike one"
    starts = {
        handle: engine.answers[handle, 0].started.num_cached_tokens for handle in (0, 1, 2, 9)
    }
    assert starts == {0: 0, 1: 12, 2: 12, 9: 0}
    for request in (*requests, other):
        assert engine.answers[request.handle, 0].tokens == engine.expect(request)


def test_a_prompt_does_not_wait_for_one_that_was_aborted(monkeypatch):
    monkeypatch.setattr(admission, "_MIN_FOLLOWED_TOKENS", 8)
    engine = FakeEngine(overlap=True)
    engine.add(make_request(0, [*range(12), 50]))
    engine.add(make_request(1, [*range(12), 51]))
    engine.loop.step()
    engine.loop.abort(0)
    engine.run()
    assert len(engine.answers[1, 0].tokens) > 0


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_a_prompt_is_hashed_once_for_all_choices(monkeypatch, enable_prefix_caching):
    sha256, hashed = keys._sha256, []

    def counted(data):
        hashed.append(data)
        return sha256(data)

    monkeypatch.setattr(keys, "_sha256", counted)
    engine = FakeEngine(enable_prefix_caching=enable_prefix_caching)
    request = make_request(0, range(60), 2, n=4)
    hashed.clear()
    engine.ask(request)
    assert [engine.answers[0, i].tokens for i in range(4)] == [
        engine.expect(request, i) for i in range(4)
    ]
    assert len(hashed) == 1 + 60 // 4  # the root, and every block of the prompt
