"""Grammars that nobody uses any more are given back, however many clients send."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

from xllm.core.grammar import GrammarCache, GrammarCompiler, GrammarError, Vocabulary
from xllm.core.grammar.compiler import estimate_bytes
from xllm.core.request.structured import StructuredOutput

EOS = 256
VOCABULARY = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"<eos>"], {EOS}, [EOS], lambda text: list(text.encode())
)


def regex(i: int, num_chars: int = 0) -> StructuredOutput:
    return StructuredOutput("regex", f"[a-z]{{{i + 1}}}" + "x" * num_chars)


def new_cache(max_lanes: int = 1, max_bytes: int = 8 << 20) -> GrammarCache:
    return GrammarCache(lambda: GrammarCompiler(VOCABULARY), max_lanes, max_bytes)


def await_room(cache: GrammarCache, output: StructuredOutput) -> None:
    """A thread that has just compiled a grammar lets go of it a moment later."""
    deadline = time.monotonic() + 10
    while not cache.has_room(output):
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("num_chars", [0, 2000])
def test_waves_of_different_grammars_stay_within_bounds(num_chars: int) -> None:
    cache = new_cache()
    known = []
    for wave in range(3):
        for i in range(100):
            found = cache.submit(regex(100 * wave + i, num_chars))
            found.future.result(timeout=10)
            known.append(weakref.ref(found.future))
            del found
            assert cache.num_bytes <= 8 << 20
        cache.check()
    alive = [ref() for ref in known if ref() is not None]
    assert 0 < len(alive) <= (8 << 20) // estimate_bytes(regex(0, num_chars))
    # The last ones, not the first.
    assert alive[-1] is cache.submit(regex(299, num_chars)).future


def test_a_grammar_in_use_stays_known_and_leaves_no_room() -> None:
    cache = new_cache(max_bytes=3 * estimate_bytes(regex(0)))
    held = [cache.submit(regex(i)) for i in range(3)]
    assert cache.has_room(regex(1)) and not cache.has_room(regex(3))
    fourth = cache.submit(regex(3))
    assert [cache.submit(regex(i)) for i in range(4)] == [*held, fourth]
    held.clear()
    fourth.future.result(timeout=10)
    assert cache.has_room(regex(4))


def test_who_is_refused_at_every_step_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(max_bytes=2 * estimate_bytes(regex(0)))
    held = [cache.submit(regex(i)) for i in range(2)]
    asked: list[StructuredOutput] = []

    def watched(output: StructuredOutput, *sizes: int) -> int:
        asked.append(output)
        return estimate_bytes(output, *sizes)

    monkeypatch.setattr("xllm.core.grammar.cache.estimate_bytes", watched)
    assert not cache.has_room(regex(2))
    num_asked = len(asked)
    assert not any(cache.has_room(regex(2)) for _ in range(100))
    assert len(asked) == num_asked
    assert not cache.has_room(regex(3))  # another one may be smaller
    held[0].future.result(timeout=10)
    del held[0]
    await_room(cache, regex(2))
    held.append(cache.submit(regex(2)))
    assert not cache.has_room(regex(3))


def test_nothing_is_forgotten_for_a_grammar_that_would_still_not_fit() -> None:
    size = estimate_bytes(regex(0))
    cache = new_cache(max_bytes=4 * size)
    held = [cache.submit(regex(i)) for i in range(2)]
    warm = [cache.submit(regex(i)).future for i in range(2, 4)]
    for future in (*warm, *(entry.future for entry in held)):
        future.result(timeout=10)
    large = regex(4, 2 * size // 160 + 1)
    assert estimate_bytes(large) > 3 * size
    for _ in range(3):
        assert not cache.has_room(large)
    assert [cache.submit(regex(i)).future for i in range(2, 4)] == warm
    held.pop()
    assert not cache.has_room(large)
    held.pop()
    assert not cache.has_room(regex(5, 4 * size // 160))
    await_room(cache, large)
    assert cache.num_bytes + estimate_bytes(large) <= 4 * size
    cache.check()


def test_texts_that_are_no_grammar_are_given_back_without_a_collection() -> None:
    cache = new_cache(max_bytes=1 << 20)
    gc.disable()
    try:
        gone = []
        for i in range(40):
            found = cache.submit(regex(i, 100_000 + i))
            with pytest.raises(GrammarError):
                bad = cache.submit(StructuredOutput("regex", f"({'x' * 100_000}{i}"))
                gone.append(weakref.ref(bad.future))
                bad.future.result(timeout=10)
            found.future.exception(timeout=10)
            del found, bad
        assert sum(ref() is not None for ref in gone) <= 10
    finally:
        gc.enable()


def test_a_checker_keeps_the_verdict_only() -> None:
    cache = new_cache(max_lanes=0)
    good, bad = cache.submit(regex(1)), cache.submit(StructuredOutput("regex", "("))
    assert good.future.result(timeout=10).num_lanes == 0
    assert good.error is None
    bad.future.exception(timeout=10)
    assert bad.error is not None
    assert good.num_bytes == len(regex(1).text)
    for _ in range(100):
        assert cache.submit(regex(1)).future.result(timeout=10).num_lanes == 0


def lanes_once_renewed(cache: GrammarCache, old: set[int]) -> set[int]:
    """The lanes of ``regex(2)`` when none of the old ones is dealt out any more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        grammar = cache.submit(regex(2)).future.result()
        lanes = {grammar.new_matcher().lane for _ in range(8)}
        if not lanes & old:
            return lanes
        time.sleep(0.002)
    return old


@pytest.mark.parametrize("why", ["tokens", "stuck"])
def test_a_worn_grammar_is_compiled_anew_beside_its_sequences(why: str) -> None:
    cache = new_cache(max_lanes=3)
    for _ in range(64):
        grammar = cache.submit(regex(2)).future.result(timeout=10)
    deadline = time.monotonic() + 10
    while grammar.num_lanes < 3 and time.monotonic() < deadline:
        time.sleep(0.002)
    running = grammar.new_matcher()
    old = {running.lane} | {grammar.new_matcher().lane for _ in range(8)}
    assert len(old) == 3
    grammar.num_tokens = 3 * 8192
    assert not grammar.worn
    if why == "tokens":
        grammar.num_tokens += 1
    else:
        grammar.wear_out()
    assert grammar.worn
    size = cache.num_bytes
    assert len(lanes_once_renewed(cache, old)) == 3
    assert grammar.num_tokens == 0 and cache.num_bytes < size
    assert running.matcher.consume_tokens(list(b"abc"))  # goes on as it was
