"""Every format, every way of cutting its text: the same answer, and nothing lost."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.parsers.samples import REASONING_SAMPLES, TOOL_SAMPLES, TOOLS, Sample
from xllm.frontend.parsers import Parsed
from xllm.frontend.parsers.catalogue import REASONING_FORMATS, TOOL_FORMATS
from xllm.frontend.parsers.message import TextParser
from xllm.frontend.parsers.sink import Sink

# Texts up to this long are cut at every pair of places, and all at this many random sets.
_ALL_PAIRS_CHARS = 36
_ALL_PAIRS_CHARS_SLOW = 110
_NUM_RANDOM = 50
# Longer ones are cut at some places only.
_ALL_PLACES_CHARS = 1000


def parser(kind: str, name: str, sample: Sample) -> TextParser:
    sink = Sink(lambda index: f"call_{index}")
    beside = "gpt_oss" if name == "gpt_oss" and kind == "tools" else sample.beside
    tools_name, reasoning_name = (name, beside) if kind == "tools" else (beside, name)
    tools = TOOL_FORMATS.load(tools_name).FORMAT if tools_name else None
    reasoning = REASONING_FORMATS.load(reasoning_name).FORMAT if reasoning_name else None
    return TextParser(
        sink, TOOLS, tool_format=tools, reasoning_format=reasoning, thinking=sample.thinking
    )


def read(kind: str, name: str, sample: Sample, pieces: Sequence[str]) -> tuple[Parsed, bool]:
    reader = parser(kind, name, sample)
    whole = Parsed()
    for piece in pieces:
        whole += reader.feed(piece)
    whole += reader.finish()
    return whole, reader.called


def cuts(sample: Sample, all_pairs_chars: int = _ALL_PAIRS_CHARS) -> Iterator[list[str]]:
    """The text in two pieces at every place, in three at every pair, in ones, in random ones.

    Parts that come alone stay whole in as many random ways more.
    """
    text = sample.text
    places = range(1, len(text))
    rng = random.Random(len(text))
    few = len(text) <= _ALL_PLACES_CHARS
    sets: Iterator[Sequence[int]] = (
        (place,) for place in (places if few else sorted(rng.sample(places, 20)))
    )
    if len(text) <= all_pairs_chars:
        sets = itertools.chain(sets, itertools.combinations(places, 2))
    some = [sorted(rng.sample(places, rng.randint(0, len(places)))) for _ in range(_NUM_RANDOM)]
    whole = [
        (m.start(), m.end()) for part in sample.alone for m in re.finditer(re.escape(part), text)
    ]
    assert sample.alone == () or whole, sample
    for start, end in whole:
        around = [*range(1, start + 1), *range(end, len(text))]
        some += [[start, end] if end < len(text) else [start], around]
        some += [sorted({start, end, *rng.sample(around, 5)} - {0, len(text)}) for _ in range(10)]
    for chosen in itertools.chain(sets, [places], some):
        ends = [0, *chosen, len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(ends)]


SAMPLES = [
    (kind, name, sample)
    for kind, table in (("tools", TOOL_SAMPLES), ("reasoning", REASONING_SAMPLES))
    for name, samples in table.items()
    for sample in samples
]
IDS = [f"{kind}-{name}-{i}" for i, (kind, name, _) in enumerate(SAMPLES)]


@pytest.mark.parametrize(("kind", "name", "sample"), SAMPLES, ids=IDS)
def test_a_text_means_what_it_says(kind, name, sample):
    parsed, called = read(kind, name, sample, [sample.text])
    assert parsed.content == sample.content
    assert parsed.reasoning == sample.reasoning
    assert [call.name for call in parsed.tool_calls] == [name for name, _ in sample.calls]
    for call, (_, arguments) in zip(parsed.tool_calls, sample.calls, strict=True):
        if isinstance(arguments, str):
            assert call.arguments == arguments
        else:
            assert json.loads(call.arguments) == arguments
    assert called == (bool(sample.calls) and sample.complete)
    assert [call.index for call in parsed.tool_calls] == [*range(len(sample.calls))]
    assert len({call.id for call in parsed.tool_calls}) == len(sample.calls)
    assert sample.ids is None or sample.ids == tuple(call.id for call in parsed.tool_calls)


@pytest.mark.parametrize(("kind", "name", "sample"), SAMPLES, ids=IDS)
def test_a_text_means_the_same_however_it_is_cut(kind, name, sample):
    whole = read(kind, name, sample, [sample.text])
    for pieces in cuts(sample):
        assert read(kind, name, sample, pieces) == whole, pieces


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "sample"), SAMPLES, ids=IDS)
def test_a_text_means_the_same_cut_at_every_pair_of_places(kind, name, sample):
    whole = read(kind, name, sample, [sample.text])
    for pieces in cuts(sample, _ALL_PAIRS_CHARS_SLOW):
        assert read(kind, name, sample, pieces) == whole, pieces


def test_every_format_has_samples():
    assert TOOL_FORMATS.names() == sorted(TOOL_SAMPLES)
    assert REASONING_FORMATS.names() == sorted(REASONING_SAMPLES)
    for name, samples in TOOL_SAMPLES.items():
        assert any(s.calls for s in samples), name
        assert any(not s.calls and s.content for s in samples), name


def test_there_are_enough_samples_and_cuts():
    num_cuts = sum(sum(1 for _ in cuts(sample)) for _, _, sample in SAMPLES)
    print(f"{len(SAMPLES)} samples, {num_cuts} cuts")
    assert len(SAMPLES) > 150
    assert num_cuts > 25_000


@pytest.mark.parametrize("name", sorted(TOOL_SAMPLES))
def test_random_texts_of_a_formats_own_pieces_lose_no_prose(name):
    """Broken calls in any order: every cut agrees, and words between them survive."""
    rng = random.Random(name)
    samples = TOOL_SAMPLES[name]
    for _ in range(6):
        parts = []
        for _ in range(4):
            text = rng.choice(samples).text
            start = rng.randrange(len(text))
            parts += [text[start : start + rng.randint(1, 60)], f"word{rng.randrange(10**9)}"]
        sample = Sample("".join(parts))
        whole = read("tools", name, sample, [sample.text])
        for pieces in itertools.islice(cuts(sample), 0, None, 5):
            assert read("tools", name, sample, pieces) == whole, pieces


OPENINGS = [
    ("qwen3_coder", "", "<tool_call><function=f><parameter=x>"),
    ("glm45", "", "<tool_call>f<arg_key>"),
    ("minimax_m2", "", '<minimax:tool_call><invoke name="f"><parameter name="'),
    ("minimax_m2", "<minimax:tool_call>", '<invoke name="f"><parameter name="x">'),
    ("deepseek_v32", "<｜DSML｜function_calls>", '<｜DSML｜invoke name="f">\n'),
    ("gpt_oss", "", "<|channel|>analysis "),
]


@pytest.mark.parametrize(("name", "first", "again"), OPENINGS)
@pytest.mark.parametrize("last", ["", "</parameter>"])
def test_an_answer_of_opening_tags_takes_no_quadratic_time(name, first, again, last):
    """Unbounded, each would be read again to the end: some billion characters."""
    sample = Sample(first + again * (200_000 // len(again)) + last)
    begin = time.process_time()
    parsed, called = read("tools", name, sample, [sample.text])
    assert time.process_time() - begin < 5.0
    assert (parsed.content, called) == (sample.text, False)


@pytest.mark.parametrize(
    ("name", "begun", "end"),
    [
        ("glm45", "<tool_call>find<arg_key>code</arg_key><arg_value><tool_call>", "</arg_value>"),
        ("glm45", "<tool_call>find<arg_key>code</arg_key><arg_value><tool_call>f", "</arg_value>"),
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="find"><parameter name="code"><invoke',
            "</parameter>",
        ),
    ],
)
def test_a_value_of_blanks_after_an_opening_tag_takes_no_quadratic_time(name, begun, end):
    begin = time.perf_counter()
    read("tools", name, Sample("", "", ()), [begun + "\n" * 20_000 + end])
    assert time.perf_counter() - begin < 1.0
