"""Incremental detokenization equals decoding the whole, for every chunking (STR-20, TOK-23)."""

from __future__ import annotations

import random

import pytest

from tests.fakes import tokenizers as fakes
from xllm.frontend.text.detokenizer import Detokenizer

TOKENIZERS = {"byte_level": fakes.byte_level(), "sentencepiece": fakes.sentencepiece()}


def deltas_of(tokenizer, ids, step, **options):
    detokenizer = Detokenizer(tokenizer, at_start=True, **options)
    deltas = [detokenizer.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    return deltas, detokenizer.flush()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("skip", [True, False])
def test_any_chunking_of_random_ids_joins_to_the_whole_text(name, step, skip):
    tokenizer = TOKENIZERS[name]
    rng = random.Random(step)
    for _ in range(1000):
        ids = [rng.randrange(tokenizer.vocab_size + 2) for _ in range(rng.randrange(1, 25))]
        deltas, rest = deltas_of(tokenizer, ids, step, skip_special_tokens=skip)
        assert "".join(deltas) + rest == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_no_delta_of_valid_text_holds_a_piece_of_a_character(name, step):
    tokenizer = TOKENIZERS[name]
    rng = random.Random(7)
    for _ in range(200):
        text = "".join(rng.choice("ab é日本😀𓀀ñ hello") for _ in range(12)).strip() or "x"
        ids = tokenizer.encode(text)
        deltas, rest = deltas_of(tokenizer, ids, step)
        assert "\ufffd" not in "".join(deltas)
        assert "".join(deltas) == text
        assert rest == ""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_decoding_agrees_with_the_tokenizers_library(name):
    tokenizer = TOKENIZERS[name]
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choice("ab é日😀 hello\n") for _ in range(10))
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


def test_a_truncated_character_is_flushed_as_a_replacement():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("a😀")[:-1]
    deltas, rest = deltas_of(tokenizer, ids, 1)
    assert ("".join(deltas), rest) == ("a", "\ufffd")


def test_an_invalid_byte_is_replaced_as_soon_as_it_is_known_to_be_one():
    tokenizer = TOKENIZERS["byte_level"]
    start, tail = tokenizer.encode("é")[0], tokenizer.encode("a")[0]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([start]) == ""
    assert detokenizer.push([tail]) == "\ufffda"


def test_sentencepiece_blanks_survive_and_only_the_first_is_trimmed():
    tokenizer = TOKENIZERS["sentencepiece"]
    pieces = [tokenizer.token_id(p) for p in ("▁Hello", "▁wide", "▁world")]
    assert "".join(deltas_of(tokenizer, pieces, 1)[0]) == "Hello wide world"
    spaced = [tokenizer.token_id(p) for p in ("a", "▁▁▁▁", "b")]
    assert "".join(deltas_of(tokenizer, spaced, 1)[0]) == "a    b"
    double = [tokenizer.token_id(p) for p in ("▁", "▁Hello")]
    assert "".join(deltas_of(tokenizer, double, 1)[0]) == " Hello"


def test_an_answer_keeps_the_blank_that_parts_it_from_its_prompt():
    tokenizer = TOKENIZERS["sentencepiece"]
    assert Detokenizer(tokenizer).push([tokenizer.token_id("▁world")]) == " world"


def test_special_tokens_have_text_only_when_asked_for():
    tokenizer = TOKENIZERS["byte_level"]
    ids = [*tokenizer.encode("a", add_special_tokens=False), tokenizer.token_id("<end>")]
    assert deltas_of(tokenizer, ids, 1) == (["a", ""], "")
    assert deltas_of(tokenizer, ids, 1, skip_special_tokens=False) == (["a", "<end>"], "")
