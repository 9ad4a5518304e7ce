"""A grammar in demand is compiled more than once, so that threads can work on it side by side."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from xllm.core.grammar import (
    Grammar,
    GrammarCache,
    GrammarCompiler,
    MaskFiller,
    Vocabulary,
    num_threads,
)
from xllm.core.request.structured import StructuredOutput

EOS = 256
VOCABULARY = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"<eos>"], {EOS}, [EOS], lambda text: list(text.encode())
)
DIGITS = StructuredOutput("regex", "[0-9]{3}")


def lanes_after(cache: GrammarCache, output: StructuredOutput, asked: int, expected: int) -> int:
    """How many lanes a grammar has once it was asked for so often."""
    for _ in range(asked):
        grammar = cache.submit(output).future.result(timeout=10)
    deadline = time.monotonic() + 5
    while grammar.num_lanes < expected and time.monotonic() < deadline:
        time.sleep(0.001)
    return grammar.num_lanes


def test_lanes_come_with_demand() -> None:
    cache = GrammarCache(lambda: GrammarCompiler(VOCABULARY), max_lanes=3)
    assert lanes_after(cache, DIGITS, 15, 1) == 1
    assert lanes_after(cache, DIGITS, 1, 2) == 2
    assert lanes_after(cache, DIGITS, 500, 3) == 3
    assert lanes_after(cache, StructuredOutput("free", ""), 40, 0) == 0


def test_a_checker_compiles_once() -> None:
    cache = GrammarCache(lambda: GrammarCompiler(VOCABULARY))
    assert lanes_after(cache, DIGITS, 100, 1) == 1


def test_slow_and_failing_grammars_are_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    class Broken(GrammarCompiler):
        def compile(self, output: StructuredOutput) -> Grammar:
            grammar = super().compile(output)
            grammar.seconds = 1.0 if output.text == "slow" else 0.0
            return grammar

        def widen(self, grammar: Grammar, output: StructuredOutput) -> None:
            asked.append(output.text)
            raise RuntimeError("boom")

    cache = GrammarCache(lambda: Broken(VOCABULARY), max_lanes=4)
    assert lanes_after(cache, StructuredOutput("regex", "slow"), 100, 1) == 1
    assert lanes_after(cache, StructuredOutput("regex", "quick"), 100, 1) == 1
    time.sleep(0.05)
    assert asked == ["quick"]
    assert cache.submit(StructuredOutput("regex", "quick")).error is None


def test_matchers_are_dealt_out_and_agree() -> None:
    compiler = GrammarCompiler(VOCABULARY)
    grammar = compiler.compile(DIGITS)
    compiler.widen(grammar, DIGITS)
    first = [grammar.new_matcher() for _ in range(6)]
    compiler.widen(grammar, DIGITS)
    taken: list[Any] = [*first, *(grammar.new_matcher() for _ in range(6))]
    # The newest lane takes the next ones, until all have the same number.
    assert sorted(Counter(entry.lane for entry in taken).values()) == [4, 4, 4]
    filler = MaskFiller()
    masks = np.zeros((len(taken), -(-257 // 32)), np.int32)
    asked = [(entry.matcher, place) for place, entry in enumerate(taken)]
    for digit in b"123":
        assert filler.fill(asked, masks) == [None] * len(taken)
        assert (masks == masks[0]).all()
        assert filler.advance([(entry.matcher, digit) for entry in taken]) == [True] * len(taken)
    filler.fill(asked, masks)
    assert np.bitwise_count(masks.view(np.uint32)).sum(axis=1).tolist() == [1] * len(taken)


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 2), (4, 3), (16, 12), (64, 16)])
def test_some_processors_are_left_to_others(
    processors: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert num_threads() == threads
