"""Thoughts within a budget: counted, ended by force, and the same whatever the engine does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.equivalence.test_grammars import new_cache
from tests.contract.equivalence.tiny_engine import EOS, MAX_LEN, TinyEngine, Tokens, Truth, request
from xllm.core.request.request import Request
from xllm.core.request.structured import StructuredOutput, ThinkingBudget

END = (ord("#"),)  # as a token of its own
TAG = "</t>"  # as text, of several tokens
LENGTH = 40


def bounded(num_tokens: int, kind: Any = "free", text: str = "", **opening: Any):
    """Thoughts up to END, then the form."""
    budget = ThinkingBudget(num_tokens, END, **opening)
    return StructuredOutput(kind, text, after_token_ids=END, budget=budget)


OUTPUTS = {
    "none at all": bounded(0),
    "some": bounded(7),
    "then a form": bounded(7, "regex", "[0-9]{3}"),
    "as text": StructuredOutput(
        "free", "", after_text=TAG, budget=ThinkingBudget(5, tuple(TAG.encode()))
    ),
    "more than are used": bounded(1000),
}


def requests() -> list[Request]:
    return [
        request(handle, [5, 6, 7, handle], LENGTH, seed=handle, grammar=output, ignore_eos=True)
        for handle, output in enumerate([*OUTPUTS.values()] * 2)
    ]


@pytest.fixture(scope="module")
def alone(truth: Truth) -> Tokens:
    """What each request answers alone."""
    engine = TinyEngine(truth.files, prefix_caching=False, grammars=new_cache())
    tokens: Tokens = {}
    for entry in requests():
        tokens |= engine.run([entry])
    return tokens


def test_thoughts_never_exceed_their_budget(alone: Tokens):
    for (handle, _), tokens in alone.items():
        name = [*OUTPUTS][handle % len(OUTPUTS)]
        if name == "none at all":
            assert tokens[0] == END[0] and (len(tokens) == LENGTH or tokens[-1] == EOS)
        elif name == "some":
            assert tokens.index(END[0]) == 7 and (len(tokens) == LENGTH or tokens[-1] == EOS)
        elif name == "then a form":
            assert tokens.index(END[0]) == 7
            assert re.fullmatch(b"[0-9]{3}", bytes(tokens[8:11])) and tokens[11:] == [EOS]
        elif name == "as text":
            assert tokens[5:9] == [*TAG.encode()] and (len(tokens) == LENGTH or tokens[-1] == EOS)


def test_an_answer_within_its_budget_is_untouched(truth: Truth, alone: Tokens):
    handle = [*OUTPUTS].index("more than are used")
    entry = request(handle, [5, 6, 7, handle], LENGTH, seed=handle, ignore_eos=True)
    plain = TinyEngine(truth.files).run([entry])
    assert plain[handle, 0] == alone[handle, 0]


def test_thoughts_that_end_themselves_are_not_ended_again(truth: Truth):
    """The model is made to write the tag at once, and nothing is forced later."""
    engine = TinyEngine(truth.files, grammars=new_cache())
    eager = {"temperature": 0.0, "logit_bias": {END[0]: 100.0}}
    made = engine.run([request(0, [1], 12, grammar=bounded(5, "regex", "[0-9]{3}"), **eager)])
    assert made[0, 0][0] == END[0] and len(made[0, 0]) == 5


@pytest.mark.parametrize("opening", [{"open_token_id": ord("<")}, {"open_text": "<"}], ids=str)
@pytest.mark.parametrize("budget", [0, 4])
def test_the_tag_that_opens_them_is_not_counted(truth: Truth, opening: Any, budget: int):
    engine = TinyEngine(truth.files, grammars=new_cache())
    output = bounded(budget, **opening)
    always = {"temperature": 0.0, "logit_bias": {ord("<"): 100.0}}
    tokens = engine.run([request(0, [1], 12, grammar=output, **always)])[0, 0]
    assert tokens == [ord("<")] * (budget + 1) + [*END] + [ord("<")] * (10 - budget)


def test_an_answer_that_opens_no_thoughts_is_left_alone(truth: Truth):
    engine = TinyEngine(truth.files, grammars=new_cache())
    always = {"temperature": 0.0, "logit_bias": {ord("x"): 100.0}}
    output = bounded(2, open_token_id=ord("<"))
    assert engine.run([request(0, [1], 9, grammar=output, **always)])[0, 0] == [ord("x")] * 9
    # One that owes a form is counted from its first token.
    output = bounded(2, "regex", "x{4}", open_text="<")
    tokens = engine.run([request(0, [1], 9, grammar=output, **always)])[0, 0]
    assert bytes(tokens[:-1]) == b"xx#xxxx"


_VARIANTS = {
    "batch": {},
    "overlap": {"overlap": True},
    "chunk 16, overlap": {"step_tokens": 16, "overlap": True},
    "preempted": {"num_kv_tokens": MAX_LEN * 3 // 2},
    "preempted, overlap": {"num_kv_tokens": MAX_LEN * 3 // 2, "overlap": True},
}


@pytest.mark.parametrize("options", _VARIANTS.values(), ids=_VARIANTS)
def test_batched_equals_alone(truth: Truth, alone: Tokens, options: dict[str, Any]):
    engine = TinyEngine(truth.files, grammars=new_cache(), **options)
    assert engine.run(requests()) == alone
    assert "num_kv_tokens" not in options or engine.stats.num_preemptions > 0
