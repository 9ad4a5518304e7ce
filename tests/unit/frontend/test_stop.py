"""Stop strings: exact, the same for every chunking, nothing shown that is part of one."""

from __future__ import annotations

import itertools

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
