"""Stop strings: exact, the same for every chunking, nothing shown that is part of one."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xllm.frontend.output.stop import StopMatcher


def run(stops, pieces, include=False):
    matcher = StopMatcher(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.flush()], None


def test_text_is_held_back_only_while_it_can_begin_a_stop():
    matcher = StopMatcher(["</s>"])
    assert matcher.push("ab<") == "ab"
    assert matcher.push("/") == ""
    assert matcher.push("x") == "</x"
    assert matcher.push("<<") == "<"
    assert matcher.flush() == "<"


def test_a_match_cuts_before_the_stop_or_behind_it():
    assert run(["two"], ["one two three"]) == (["one "], "two")
    assert run(["two"], ["one two three"], include=True) == (["one two"], "two")


def test_the_stop_that_is_complete_first_wins_and_then_the_longest():
    assert run(["bcd", "c"], ["abcd"]) == (["ab"], "c")
    assert run(["c", "abc"], ["xabc"]) == (["x"], "abc")


def test_a_failed_beginning_inside_a_stop_is_not_lost():
    assert run(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "aab")


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_every_chunking_gives_the_same_text_and_stop(text, stops, cuts, include):
    borders = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    whole, stop = run(stops, list(text), include)
    parts, same = run(stops, pieces, include)
    assert ("".join(whole), stop) == ("".join(parts), same)
    if stop is None:
        assert "".join(whole) == text
        assert not any(s in text for s in stops)
    elif not include:
        assert text.startswith("".join(whole) + stop)


@pytest.mark.parametrize("pieces", [["one t", "wo"], ["one tw", "o"], ["one ", "two"]])
def test_no_part_of_a_stop_is_ever_shown(pieces):
    assert "".join(run(["two"], pieces)[0]) == "one "


def test_stops_that_almost_match_for_long_cost_no_more_than_the_text():
    # A search from every held character would look at 60 x 4,000 x 4,000 of them for each piece.
    near = ["--x" + chr(97 + i % 26) * 4000 + str(i) for i in range(60)]
    matcher = StopMatcher([*near, "-" * 4000 + "b"])
    begin = time.perf_counter()
    shown = [matcher.push("-" * 64) for _ in range(100)]
    assert time.perf_counter() - begin < 2.0  # 0.05 s
    assert "".join(shown) == "-" * 2400
    assert matcher.flush() == "-" * 4000
    assert matcher.matched is None


@given(
    pieces=st.lists(st.text("ab", max_size=12), max_size=12),
    stop=st.text("ab", min_size=3, max_size=12),
)
def test_what_is_held_back_is_what_may_begin_a_stop(pieces, stop):
    matcher = StopMatcher([stop])
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.matched is not None:
            assert shown == text[: text.index(stop)]
            return
        assert stop not in text
        held = max(n for n in range(len(stop)) if text.endswith(stop[:n]))
        assert shown == text[: len(text) - held]
