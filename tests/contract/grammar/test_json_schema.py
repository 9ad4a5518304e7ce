"""Every feature of JSON schema is enforced or refused; nothing is ignored in silence."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.contract.grammar.json_schema_features import FEATURES, Feature
from xllm.core.grammar import GrammarCompiler, GrammarError, Vocabulary
from xllm.core.request.structured import StructuredOutput

EOS = 256


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    table = [*(bytes([i]) for i in range(256)), b"<eos>"]
    return GrammarCompiler(Vocabulary(table, {EOS}, [EOS], lambda text: list(text.encode())))


def accepts(matcher, text: str) -> bool:
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_is_enforced_or_refused(compiler: GrammarCompiler, feature: Feature) -> None:
    output = StructuredOutput("json_schema", json.dumps(feature.schema))
    if feature.refused:
        with pytest.raises(GrammarError) as caught:
            compiler.compile(output)
        assert str(caught.value) and "\n" not in str(caught.value)
        return
    grammar = compiler.compile(output)
    for text in feature.valid:
        json.loads(text)
        assert accepts(grammar.new_matcher().matcher, text), f"{text} is valid"
    for text in feature.invalid:
        assert not accepts(grammar.new_matcher().matcher, text), f"{text} is not valid"


@pytest.mark.parametrize("gap", ["", " ", "\n", "\n    ", "\n\t\t"])
def test_usual_white_space_is_allowed_and_bounded(compiler: GrammarCompiler, gap: str) -> None:
    grammar = compiler.compile(StructuredOutput("json_schema", '{"type":"array"}'))
    assert accepts(grammar.new_matcher().matcher, f"[{gap}1,{gap}2{gap}]")
    assert not accepts(grammar.new_matcher().matcher, "[" + " " * 40 + "1]")
    assert not accepts(grammar.new_matcher().matcher, "[\n\n1]")


def test_a_schema_cannot_change_how_it_is_compiled(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "x-guidance": {"whitespace_pattern": r"[ ]*", "lenient": True}}
    grammar = compiler.compile(StructuredOutput("json_schema", json.dumps(schema)))
    assert not accepts(grammar.new_matcher().matcher, "[" + " " * 40 + "1]")
    schema["uniqueItems"] = True
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiler.compile(StructuredOutput("json_schema", json.dumps(schema)))


def _properties(count: int) -> dict[str, Any]:
    return {f"p{i}": {"type": "integer"} for i in range(count)}


LARGE: dict[str, dict[str, Any]] = {
    "1,300 optional properties": {"type": "object", "properties": _properties(1300)},
    "1,300 required properties": {
        "type": "object",
        "properties": _properties(1300),
        "required": [*_properties(1300)],
    },
    "600 alternatives": {
        "anyOf": [
            {"type": "object", "properties": {"a": {"type": "string"}, f"p{i}": {"type": "null"}}}
            for i in range(600)
        ]
    },
    "600 arrays": {
        "anyOf": [{"type": "array", "items": {"minimum": i, "type": "integer"}} for i in range(600)]
    },
    "600 objects in an array": {
        "type": "array",
        "items": {"anyOf": [{"type": "object", "properties": _properties(2)}] * 600},
    },
    "3,000 alternatives": {
        "anyOf": [{"type": "object", "properties": {f"p{i}": {}, "q": {}}} for i in range(3000)]
    },
    "128 pattern properties": {
        "type": "object",
        "patternProperties": {f"^f{i}_": {"type": "string"} for i in range(128)},
    },
    "5,000 values": {"enum": [f"value {i}" for i in range(5000)]},
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_schema_is_followed_or_refused_as_it_is_compiled(
    compiler: GrammarCompiler, name: str
) -> None:
    """Never compiled and then given up in the middle of an answer."""
    try:
        grammar = compiler.compile(StructuredOutput("json_schema", json.dumps(LARGE[name])))
    except GrammarError as error:
        assert name == "3,000 alternatives", error
        assert "too many alternatives" in str(error) and "10000" in str(error)
        return
    assert name != "3,000 alternatives"
    for seed in range(3):
        rng = random.Random(seed)
        made = grammar.new_matcher()
        assert made is not None
        for _ in range(40):
            mask = np.frombuffer(made.matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            assert allowed and not made.matcher.is_error(), made.matcher.get_error()
            token = rng.choice(allowed)
            assert made.matcher.consume_tokens([token]), made.matcher.get_error()
            if made.matcher.is_stopped():
                break
