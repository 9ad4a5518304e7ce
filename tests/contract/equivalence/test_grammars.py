"""Constrained answers: valid, and the same tokens whatever the engine does to get there."""

from __future__ import annotations

import itertools
import json
import re
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.contract.equivalence.tiny_engine import (
    EOS,
    MAX_LEN,
    SAMPLED,
    TinyEngine,
    Tokens,
    Truth,
    request,
)
from xllm.core.grammar import (
    Grammar,
    GrammarCache,
    GrammarCompiler,
    MaskFiller,
    Vocabulary,
    cache,
)
from xllm.core.grammar.compiler import estimate_bytes
from xllm.core.messages.server import Failure
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.structured import StructuredOutput
from xllm.execution.worker.graph_step import GraphStep

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "k": {"enum": ["cat", "日本"]}},
    "required": ["n", "k"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": StructuredOutput("json_schema", json.dumps(SCHEMA)),
    "compact": StructuredOutput("json_schema", json.dumps(SCHEMA), compact=True),
    "regex": StructuredOutput("regex", "[0-9]{3}-[0-9]{4}"),
    "choice": StructuredOutput("regex", "yes|no|yesterday"),
    "lark": StructuredOutput("lark", 'start: "(" start ")" | "x"'),
    "late": StructuredOutput("regex", "[ab]{4}", after_text="q"),
    "endless": StructuredOutput("regex", "[a-z ]*"),
}
BYTES = [*(bytes([i]) for i in range(256)), b"<eos>"]
# Rows stand at every offset, half of them are drawn, and unconstrained rows are among them.
NAMES = [*GRAMMARS, "none", *GRAMMARS, "none"]


def new_cache(make: Any = GrammarCompiler, max_lanes: int = 1) -> GrammarCache:
    """Grammars over single bytes."""
    return GrammarCache(
        lambda: make(Vocabulary(BYTES, {EOS}, [EOS], lambda text: list(text.encode()))), max_lanes
    )


def requests() -> list[Request]:
    rng = np.random.default_rng(1)
    built = []
    for handle, name in enumerate(NAMES):
        prompt = rng.integers(0, 256, (3, 8, 17, 40)[handle % 4]).tolist()
        params = SAMPLED if handle % 2 else {"temperature": 0.0}
        # The model's own choice is forced to "q" in time, so that a late grammar begins.
        if name == "late":
            params = {**params, "logit_bias": {ord("q"): 8.0}}
        grammar = GRAMMARS.get(name)
        built.append(request(handle, prompt, 48, seed=handle, grammar=grammar, **params))
    return built


@pytest.fixture(scope="module")
def alone(truth: Truth) -> Tokens:
    """What each request answers alone."""
    engine = TinyEngine(truth.files, prefix_caching=False, grammars=new_cache())
    tokens: Tokens = {}
    for entry in requests():
        tokens |= engine.run([entry])
    return tokens


def test_answers_follow_their_grammar(alone: Tokens):
    for (handle, _), tokens in alone.items():
        name = NAMES[handle]
        if name == "none":
            assert len(tokens) == 48
            continue
        assert EOS not in tokens[:-1]
        data = bytes(token for token in tokens if token != EOS)
        if tokens[-1] != EOS:
            assert len(tokens) == 48 and name in ("schema", "lark", "late", "endless", "compact")
            continue
        text = data.decode("latin-1")  # "late" begins with any bytes
        if name in ("schema", "compact"):
            value = json.loads(text)
            assert set(value) == {"n", "k"} and type(value["n"]) is int
            assert name == "schema" or not re.search(r"\s", text)
        elif name == "late":
            assert re.fullmatch("[^q]*q[ab]{4}", text, re.DOTALL)
        elif name == "lark":
            depth = (len(text) - 1) // 2
            assert text == "(" * depth + "x" + ")" * depth
        else:
            assert re.fullmatch(GRAMMARS[name].text, text)


_VARIANTS = {
    "batch": {},
    "overlap": {"overlap": True},
    "chunk 16": {"step_tokens": 16},
    "chunk 16, overlap": {"step_tokens": 16, "overlap": True},
    "four rows, overlap": {"max_rows": 4, "overlap": True},
}


@pytest.mark.parametrize("options", _VARIANTS.values(), ids=_VARIANTS)
def test_batched_equals_alone(truth: Truth, alone: Tokens, options: dict[str, Any]):
    engine = TinyEngine(truth.files, grammars=new_cache(), **options)
    assert engine.run(requests()) == alone


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("num_grammars", [0, 1, 2])
def test_memory_for_few_grammars_changes_no_token(
    truth: Truth, alone: Tokens, overlap: bool, num_grammars: int
):
    """Requests wait until those before them give theirs back; one runs whatever it takes."""
    grammars = new_cache()
    grammars._max_bytes = int(num_grammars * 1.01 * estimate_bytes(GRAMMARS["schema"]))
    engine = TinyEngine(truth.files, overlap=overlap, grammars=grammars)
    peaks, schedule = [], engine.scheduler.schedule

    def watched() -> Any:
        plan = schedule()
        peaks.append(len(grammars))
        return plan

    engine.scheduler.schedule = watched
    assert engine.run(requests()) == alone
    # Texts are short, so all grammars count the same; what was sampled counts besides.
    assert max(peaks) == max(1, num_grammars)
    grammars.check()


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_requests_that_wait_for_room_may_be_aborted_or_wrong(truth: Truth, overlap: bool):
    grammars = new_cache()
    grammars._max_bytes = 0  # one at a time
    engine = TinyEngine(truth.files, overlap=overlap, grammars=grammars)
    for handle in range(1, 6):
        text = "(" if handle == 3 else f"[0-9]{{{handle}}}"
        grammar = StructuredOutput("regex", text)
        engine.loop.submit(request(handle, [3, 4], 20, n=2, grammar=grammar))
    assert len(engine.scheduler.pending_grammars) <= 1  # the first, unless it is compiled already
    engine.scheduler.abort(1)  # the one that the others wait for
    engine.scheduler.abort(4)
    engine.scheduler.abort(5, 0)
    engine.scheduler.check()
    tokens, failures = run_all(engine, [])
    assert [(f.handle, f.status) for f in failures] == [(3, 400)]
    # Both choices of request 2, and what is left of request 5; digits and the end of each.
    assert {handle: len(found) for (handle, _), found in tokens.items() if found} == {2: 6, 5: 6}
    assert not engine.scheduler.pending_grammars and not engine.scheduler.has_work


def test_lanes_change_no_token(truth: Truth, alone: Tokens, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_ASKED_PER_LANE", 1)
    fill, orders = MaskFiller.fill, []

    def noted(self: MaskFiller, matchers: Any, masks: Any) -> Any:
        lanes = [lane_of[id(matcher)] for matcher, _ in matchers]
        orders.append([lane for lane, _ in itertools.groupby(lanes)])
        return fill(self, matchers, masks)

    lane_of: dict[int, int] = {}
    taken = []  # kept, so that no id is used twice
    new_matcher = Grammar.new_matcher

    def dealt(self: Grammar) -> Any:
        taken.append(new_matcher(self))
        lane_of[id(taken[-1].matcher)] = taken[-1].lane
        return taken[-1]

    monkeypatch.setattr(MaskFiller, "fill", noted)
    monkeypatch.setattr(Grammar, "new_matcher", dealt)
    engine = TinyEngine(truth.files, overlap=True, grammars=new_cache(max_lanes=3))
    assert engine.run(requests()) == alone
    assert len(set(lane_of.values())) > len(GRAMMARS)
    assert all(len(order) == len(set(order)) for order in orders), "a lane's rows stand apart"


def test_masks_wait_for_nobody(truth: Truth, monkeypatch: pytest.MonkeyPatch):
    """While a step computes, the loop commits the one before and schedules the one after; only
    then it fills masks."""
    grammars = new_cache()
    grammars.submit(GRAMMARS["endless"]).future.result()  # both rows start in the first step
    engine = TinyEngine(truth.files, overlap=True, grammars=grammars)
    log: list[str] = []

    def note(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    note(engine.scheduler, "schedule")
    note(engine.scheduler, "commit")
    note(MaskFiller, "fill")
    note(GraphStep, "execute")
    bias = {EOS: -100.0}
    engine.run(
        [
            request(0, [3, 4], 9, grammar=GRAMMARS["endless"], logit_bias=bias),
            request(1, [5], 9),
        ]
    )
    # The masks of a step, then the forward pass of the next.
    steady = ["schedule", "fill", "execute", "commit"]
    assert log[:6] == ["schedule", "execute", *steady]
    assert log[2:26] == steady * 6


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_preempted_equals_undisturbed(truth: Truth, alone: Tokens, overlap: bool):
    engine = TinyEngine(
        truth.files, overlap=overlap, grammars=new_cache(), num_kv_tokens=MAX_LEN * 5 // 4
    )
    assert engine.run(requests()) == alone
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_choices_have_matchers_of_their_own(truth: Truth, overlap: bool):
    engine = TinyEngine(truth.files, overlap=overlap, grammars=new_cache())
    both = engine.run([request(0, [5, 6, 7], 40, seed=70, n=2, grammar=GRAMMARS["regex"])])
    for choice in range(2):
        solo = engine.run([request(1, [5, 6, 7], 40, seed=70 + choice, grammar=GRAMMARS["regex"])])
        assert both[0, choice] == solo[1, 0]
    assert len(both[0, 0]) == 9


def run_all(engine: TinyEngine, entries: list[Request]) -> tuple[Tokens, list[Failure]]:
    """Tokens and failures of requests of which some fail."""
    for entry in entries:
        engine.loop.submit(entry)
    tokens: Tokens = {}
    failures: list[Failure] = []
    while engine.scheduler.has_work:
        for batch in engine.loop.step():
            failures += batch.failures
            flat = batch.token_ids.tolist()
            for handle, count, finish in zip(
                batch.handles.tolist(), batch.counts.tolist(), batch.finish.tolist(), strict=True
            ):
                if finish != FinishReason.ERROR:
                    tokens.setdefault((handle, 0), []).extend(flat[:count])
                flat = flat[count:]
        engine.scheduler.check()
    return tokens, failures


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_min_tokens_holds_until_nothing_but_the_end_is_left(truth: Truth, overlap: bool):
    """Rows that are preempted meanwhile included."""

    def asked(minimum: int) -> list[Request]:
        built = []
        for handle, name in enumerate(["regex", "choice", "endless", "late", "none"]):
            bias = {EOS: 50.0, ord("q"): 50.0 * (name == "late" and not minimum)}
            params = {"logit_bias": bias, "min_tokens": minimum, "temperature": 0.0}
            entry = request(handle, [3, 4], 40, grammar=GRAMMARS.get(name), **params)
            stops = (EOS, ord("y"))
            held = stops if minimum else ()
            built.append(
                msgspec.structs.replace(entry, stop_token_ids=stops, suppress_token_ids=held)
            )
        return built

    engine = TinyEngine(truth.files, overlap=overlap, grammars=new_cache())
    free = engine.run(asked(0))
    held = engine.run(asked(30))
    small = TinyEngine(truth.files, overlap=overlap, grammars=new_cache(), num_kv_tokens=64)
    assert small.run(asked(30)) == held
    assert small.stats.num_preemptions > 0
    text = {key: bytes(token for token in value if token != EOS) for key, value in held.items()}
    assert len(held[0, 0]) == 9 and held[0, 0][-1] == EOS  # 8 digits and what must follow them
    assert re.fullmatch(rb"[0-9]{3}-[0-9]{4}", text[0, 0])
    assert text[1, 0] == b"no" and held[1, 0][-1] == EOS
    assert free[2, 0] == [EOS] and free[4, 0] == [EOS]
    for handle in (2, 4):
        assert held[handle, 0].index(EOS) == 30 and len(held[handle, 0]) == 31
    assert re.fullmatch(b"[a-z ]{30}", text[2, 0]) and b"y" not in text[2, 0]
    assert EOS not in held[3, 0][:30]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_a_contradiction_fails_alone(truth: Truth, overlap: bool):
    engine = TinyEngine(truth.files, overlap=overlap, grammars=new_cache())
    good = request(1, [3, 4], 20, grammar=GRAMMARS["regex"])
    expected = engine.run([good])
    bad = request(2, [3, 4], 40, grammar=GRAMMARS["regex"], allowed_token_ids=(7,))
    tokens, failures = run_all(engine, [good, bad])
    assert tokens[1, 0] == expected[1, 0]
    (failure,) = failures
    assert (failure.handle, failure.status) == (2, 400)
    assert "structured_outputs" in failure.message


class Broken(GrammarCompiler):
    """Raises for one grammar what no one expects."""

    def compile(self, output: StructuredOutput) -> Any:
        if output.text == "boom":
            raise RuntimeError("boom")
        return super().compile(output)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_a_grammar_that_does_not_compile_fails_alone(truth: Truth, overlap: bool):
    engine = TinyEngine(truth.files, overlap=overlap, grammars=new_cache(Broken))
    good = request(1, [3, 4], 20, grammar=GRAMMARS["regex"])
    bad = [
        request(2, [3, 4], 20, n=3, grammar=StructuredOutput("json_schema", '{"type":"thing"}')),
        request(3, [3, 4], 20, grammar=StructuredOutput("regex", "boom")),
    ]
    tokens, failures = run_all(engine, [*bad, good])
    assert {(f.handle, f.choice, f.status) for f in failures} == {(2, -1, 400), (3, -1, 400)}
    assert set(tokens) == {(1, 0)} and len(tokens[1, 0]) == 9


def test_the_engine_runs_on_while_a_grammar_compiles(truth: Truth):
    """The slow one waits, is aborted in part, and starts when it can."""
    release = threading.Event()

    class Slow(GrammarCompiler):
        def compile(self, output: StructuredOutput) -> Any:
            if output.text == "[xy]{3}":
                assert release.wait(20)
            return super().compile(output)

    engine = TinyEngine(truth.files, overlap=True, grammars=new_cache(Slow))
    slow = request(1, [3, 4], 20, n=2, grammar=StructuredOutput("regex", "[xy]{3}"))
    engine.loop.submit(slow)
    assert len(engine.run_until_idle([request(2, [3, 4], 20, temperature=0.0)])[2, 0]) == 20
    engine.scheduler.abort(1, 0, stopped=True)
    engine.scheduler.check()
    release.set()
    tokens = engine.run([])
    assert re.fullmatch(b"[xy]{3}", bytes(tokens[1, 1][:-1]))


def test_white_space_ends_though_the_model_prefers_it(truth: Truth):
    engine = TinyEngine(truth.files, grammars=new_cache())
    spaces = {ord(c): 100.0 for c in " \n\t\r"}
    schema = StructuredOutput("json_schema", json.dumps({"type": "array", "maxItems": 2}))
    made = engine.run([request(0, [1], 120, temperature=0.0, grammar=schema, logit_bias=spaces)])
    text = bytes(t for t in made[0, 0] if t != EOS).decode()
    assert max(map(len, re.findall(r"\s+", text))) <= 25
