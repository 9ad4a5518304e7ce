"""``docs/reference/failure-cases.md`` lists every case once, with tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.contract.parsers.samples import REASONING_SAMPLES, TOOL_SAMPLES

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "reference" / "failure-cases.md"
# Cases that look at our own classes or processes, by prefix.
CASES = {
    "API": (30, 32),
    "STR": (20, 21, 23, 24),
    "TOK": (20, 21, 22, 23, 25, 26, 27, 29),
    "TL": (20, 21, 22, 23, 25, 26, 27, 28, 29, 30, 31, 32, 35, 36, 38, 39),
    "RP": (1, 2, 4, 6, 7),
    "SO": (20, 21, 23, 25),
    "SAM": (20, 21, 22, 23, 25, 26, 28, 29),
    "KV": (20, 21, 22, 23, 24, 25, 27, 28, 29, 30, 31, 33, 35, 37, 38, 40, 41),
    "ME": (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 17),
    "OPS": (20, 21, 23, 24, 26, 27, 28, 30),
}
IDS = [f"{prefix}-{number:02}" for prefix, numbers in CASES.items() for number in numbers]
_ROW = re.compile(r"^\| ([A-Z]+-\d+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py)::([\w:]+)`")


# What a parser's samples must hold of each case: the format, and parts of its texts.
PARSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "TL-20": ("hermes", ('"arguments":{"id":42}}',)),
    "TL-21": ("hermes", ('{"cmd": "mkdir -p t/{a1,b2"}',)),
    "TL-22": ("hermes", ('{"nums":[{"v":1},{"v":2}]}',)),
    "TL-23": ("hermes", ("Sure. <tool_call>",)),
    "TL-25": ("llama3_json", ('"parameters":{"f":{"a":{"b":1}}}}', '}}; {"name"')),
    "TL-26": ("mistral", ('"arguments":{"x":{"y":[1,{"z":2}]}}',)),
    "TL-27": ("mistral", ('get[ARGS]{"c":"Oslo"}[TOOL_CALLS]get[ARGS]{"c":"Bonn"}',)),
    "TL-28": ("pythonic", ('[find(q=[\'a, b\', "c)]"], o={"k": [1, 2]}), ping()]',)),
    "TL-29": ("deepseek_v3", ('```json\n{"city":"Lima"}\n```',)),
    "TL-30": ("glm45", ("<arg_value>007</arg_value>", "<tool_call>ping")),
    "TL-31": ("kimi_k2", ("functions.get_w:0\n", "<|tool_call_section_begin|>", "x{]")),
    "TL-32": ("gpt_oss", ("to=functions.web-browsing", "to=functions.f<|channel|>", "junk words")),
    "TL-36": ("qwen3_coder", ("if a < b:\n", "<parameter=n>\n7\n</parameter>")),
    "RP-01": ("deepseek_r1", ("2+2 is 4</think>The answer is 4",)),
    "RP-04": ("qwen3", ("</think>ok",)),
}


def rows() -> dict[str, str]:
    """Cell of tests by case."""
    found = _ROW.findall(PAGE.read_text())
    assert len({case for case, _, _ in found}) == len(found), "a case is listed twice"
    return {case: tests for case, _, tests in found}


@functools.cache
def names(path: str) -> set[str]:
    """Test functions of a file, those of classes with the class's name."""
    tree = ast.parse((TESTS / path).read_text())
    found = set()
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + f.name for f in inside if isinstance(f, ast.FunctionDef)}
    return {name for name in found if "test_" in name}


def test_every_case_is_listed_and_nothing_else() -> None:
    assert sorted(rows()) == sorted(IDS)


@pytest.mark.parametrize("case", IDS)
def test_a_case_has_tests_that_exist_or_a_reason(case: str) -> None:
    cell = rows()[case]
    if cell.startswith("none: "):
        assert len(cell) > len("none: ") + 20
        return
    found = _TEST.findall(cell)
    assert found
    for path, name in found:
        assert name in names(path), f"{path} has no {name}"


@pytest.mark.parametrize("case", PARSED)
def test_a_parsers_case_is_among_its_samples(case: str) -> None:
    name, parts = PARSED[case]
    samples = (TOOL_SAMPLES if case.startswith("TL") else REASONING_SAMPLES)[name]
    for part in parts:
        assert any(part in sample.text for sample in samples)


def test_a_case_that_names_the_samples_is_one_of_these() -> None:
    assert {case for case, cell in rows().items() if "parsers/test_formats.py" in cell} == {*PARSED}
