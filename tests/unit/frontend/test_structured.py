"""Constrained output at intake: every name for it becomes one grammar, within limits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time

import pytest

from tests.unit.frontend.test_intake import chat, completion, make_factory, refusal
from xllm.core.grammar import GrammarCompiler
from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput, StructuredOutputsParams
from xllm.frontend.intake import grammar_check
from xllm.frontend.protocol import RequestError

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            SCHEMA_TEXT,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            SCHEMA_TEXT,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a.b", "c", "c"]}}, "regex", r"a\.b|c"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA_TEXT),
        ({"guided_regex": "[0-9]"}, "regex", "[0-9]"),
        ({"guided_choice": ["yes", "no"]}, "regex", "yes|no"),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"guided_grammar": 'start: "%json"'}, "lark", 'start: "%json"'),
        ({"regex": "[0-9]"}, "regex", "[0-9]"),
        ({"json_schema": SCHEMA_TEXT}, "json_schema", SCHEMA_TEXT),
    ],
)
def test_every_name_for_a_form_becomes_the_same_grammar(fields, kind, text):
    factory = make_factory()
    expected = StructuredOutput(kind, text)
    assert chat(factory, **fields).request.structured_output == expected
    assert completion(factory, **fields)[0].structured_output == expected


def test_ebnf_is_translated_and_tags_become_a_grammar():
    factory = make_factory()
    ebnf = chat(factory, guided_grammar='root ::= "yes" | "no"').request.structured_output
    assert ebnf is not None and ebnf.kind == "lark" and "::=" not in ebnf.text
    tag = chat(factory, response_format={"type": "structural_tag", **TAG}).request
    other = chat(factory, structured_outputs={"structural_tag": TAG}).request
    assert tag.structured_output == other.structured_output
    assert tag.structured_output is not None and "trigger_0[lazy]" in tag.structured_output.text


def test_plain_text_has_no_grammar():
    for fields in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": None}):
        assert chat(make_factory(), **fields).request.structured_output is None


def nested(depth):
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def rule_chain(length):
    rules = [f'R{i}: (R{i + 1} | "b")+ "a"' for i in range(length)]
    return "\n".join(["start: R0", *rules, f'R{length}: "a"'])


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex"),
        ({"structured_outputs": "json"}, "structured_outputs", "object"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "str"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs", "empty"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "empty"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs", "empty"),
        ({"structured_outputs": {"choice": ["a"] * 5000}}, "structured_outputs", "4096"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "not valid JSON"),
        ({"structured_outputs": {"json": "7"}}, "structured_outputs", "object"),
        ({"structured_outputs": {"json": '{"a":' + "[" * 5000}}, "structured_outputs", "JSON"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " *"}},
            "structured_outputs",
            "whitespace_pattern",
        ),
        ({"guided_json": nested(70)}, "guided_json", "64 deep"),
        ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json", "262144"),
        ({"guided_json": {"anyOf": [{}] * 5000}}, "guided_json", "4096"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "schema": {"patternProperties": {f"^f{i}_": {} for i in range(1300)}},
                    },
                }
            },
            "response_format",
            "at most 128 patternProperties, got 1300",
        ),
        ({"guided_json": {"multipleOf": 1_000_003}}, "guided_json", "multipleOf"),
        ({"guided_json": {"multipleOf": 1e300}}, "guided_json", "multipleOf"),
        # A recursion without an end in the library, and integers that it writes wrongly.
        ({"guided_json": {"const": -(2**63)}}, "guided_json", "2**53"),
        ({"guided_json": {"enum": [1, {"id": [2**53 + 1]}]}}, "guided_json", "2**53"),
        ({"guided_json": {"type": "integer", "maximum": -1e19}}, "guided_json", "maximum"),
        ({"guided_json": {"items": {"minimum": 2**60}}}, "guided_json", "at most 2**53"),
        ({"guided_grammar": f'start: %json {{"const": {-(2**63)}}}'}, "guided_grammar", "2**53"),
        ({"guided_grammar": 'start: %json {"a'}, "guided_grammar", "%json"),
        ({"guided_grammar": rule_chain(5000)}, "guided_grammar", "4096"),
        ({"guided_regex": "a" * 300_000}, "guided_regex", "262144"),
        ({"guided_grammar": " "}, "guided_grammar", "empty"),
        ({"guided_grammar": "root ::= ((("}, "guided_grammar", "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
            "response_format",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format",
            "schema",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "array"),
        (
            {"response_format": {"type": "structural_tag", **TAG, "triggers": ["<g"]}},
            "response_format",
            "trigger",
        ),
    ],
)
def test_a_malformed_or_oversized_form_is_named(fields, field, told):
    error = refusal(chat, make_factory(), **fields)
    assert error.param == field
    assert told in error.message


def test_bounds_of_64_bit_integers_are_passed_on():
    schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert chat(make_factory(), guided_json=schema).request.structured_output is not None


def ref_chain(length):
    links = {
        f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}}
        for i in range(length)
    }
    return {"$defs": {**links, f"a{length}": {"const": 1}}, "$ref": "#/$defs/a0"}


_COMPILE = """
import asyncio
from tests.unit.frontend import test_structured as t
from xllm.frontend.intake import grammar_check
grammar_check.MAX_COMPILE_SECONDS = 100.0  # a slow machine needs more than 10
for fields in ({"guided_json": t.ref_chain(1300)}, {"guided_grammar": t.rule_chain(2000)}):
    asyncio.run(t._check(t.make_factory(), **fields))
"""


def test_the_deepest_grammars_that_are_taken_fit_the_stack_that_compiles_them():
    process = subprocess.run([sys.executable, "-c", _COMPILE], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_clients_cannot_delay_a_constraint():
    wanted = {"regex": "a", "after_text": "never", "after_token_ids": [7]}
    output = chat(make_factory(), structured_outputs=wanted).request.structured_output
    assert output is not None and not output.after_text and not output.after_token_ids


def test_offline_parameters_become_a_grammar_and_do_not_travel_twice():
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=("a", "b"), after_text="</think>")
    )
    request = make_factory().create("hello", params).request
    assert request.structured_output == StructuredOutput("regex", "a|b", after_text="</think>")
    assert request.params.structured_outputs is None


def test_a_grammar_ends_with_eos_even_if_eos_is_to_be_ignored():
    factory = make_factory()
    assert completion(factory, ignore_eos=True)[0].stop_token_ids == ()
    constrained = completion(factory, ignore_eos=True, guided_regex="a")[0]
    assert constrained.stop_token_ids == (1, 2)


async def _check(factory, **fields):
    prepared = chat(factory, **fields)
    await factory.grammars.check(prepared.request, prepared.grammar_field)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "thing"},
        {"type": 7},
        {"type": "string", "pattern": "(unclosed["},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#"},
        {"type": "integer", "minimum": 5, "maximum": 3},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema):
    with pytest.raises(RequestError) as caught:
        asyncio.run(_check(make_factory(), guided_json=schema))
    assert caught.value.status == 400
    assert caught.value.param == "guided_json"
    assert "\n" not in caught.value.message


def test_a_good_grammar_passes_and_is_compiled_once(monkeypatch):
    compiled = []
    compile_one = GrammarCompiler.compile
    monkeypatch.setattr(
        GrammarCompiler, "compile", lambda self, o: compiled.append(o) or compile_one(self, o)
    )
    factory = make_factory()
    for _ in range(2):
        asyncio.run(_check(factory, guided_regex="[0-9]{3}"))
    assert len(compiled) == 1


def test_a_deadline_does_not_wait_for_a_grammar(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(GrammarCompiler, "compile", lambda self, output: release.wait(20))
    begin = time.monotonic()
    try:
        with pytest.raises(RequestError, match="within its deadline of 50 ms") as caught:
            asyncio.run(_check(make_factory(), guided_regex="slow", deadline_ms=50))
        assert time.monotonic() - begin < 2
    finally:
        release.set()
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")


def test_a_slow_grammar_is_refused_in_time_and_the_loop_is_not_blocked(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(GrammarCompiler, "compile", lambda self, output: release.wait(20))
    monkeypatch.setattr(grammar_check, "MAX_COMPILE_SECONDS", 0.2)
    factory = make_factory()

    async def run():
        ticks = 0
        task = asyncio.ensure_future(_check(factory, guided_regex="slow"))
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        again = time.monotonic()
        results = await asyncio.gather(
            task, _check(factory, guided_regex="slow"), return_exceptions=True
        )
        # Both threads of the compiler are taken now: the third grammar never gets its turn.
        others = [_check(factory, guided_regex=regex) for regex in ("slow too", "late")]
        late = await asyncio.gather(*others, return_exceptions=True)
        return ticks, time.monotonic() - again, [*results, *late]

    try:
        ticks, seconds, results = asyncio.run(run())
    finally:
        release.set()
    assert ticks >= 5
    assert seconds < 1.0
    assert [error.status for error in results] == [400, 400, 400, 503]
    assert results[0].param == "guided_regex" and "0.2 seconds" in results[0].message
