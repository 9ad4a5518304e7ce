"""Every feature of JSON schema is enforced or refused; nothing is ignored in silence."""

from __future__ import annotations

import json

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
