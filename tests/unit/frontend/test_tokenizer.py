"""Tokenizer: special tokens, bytes of tokens, files and GGUF metadata."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models

from tests.fakes import tokenizers as fakes
from xllm.core.config.files import ModelFiles
from xllm.frontend.text import Tokenizer, load_tokenizer
from xllm.frontend.text.gguf import tokenizer_from_gguf


def test_bos_is_put_before_a_text_exactly_once():
    tokenizer = fakes.byte_level(adds_bos=True)
    bare = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [0, *bare]
    assert tokenizer.encode("<bos>hello") == [0, *bare]
    assert tokenizer.encode_batch(["hello", "<bos>hello"]) == [[0, *bare], [0, *bare]]


def test_eos_is_put_behind_a_text_only_if_the_model_wants_it():
    assert fakes.byte_level(adds_eos=True).encode("a")[-1] == 1
    assert 1 not in fakes.byte_level().encode("a")


def test_the_backends_own_post_processor_is_honoured_and_can_be_overruled():
    backend = fakes.byte_level()._backend
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    assert Tokenizer(backend, bos_token_id=0).encode("a")[0] == 0
    assert Tokenizer(backend, bos_token_id=0, adds_bos=False).encode("a")[0] != 0
    assert Tokenizer(backend, adds_bos=True).encode("a")[0] == 0  # the config names no token


def test_bytes_of_all_tokens_join_to_the_text():
    tokenizer = fakes.byte_level()
    text = "hello 😀 日本 \n\t world"
    joined = b"".join(tokenizer.bytes_of(i) for i in tokenizer.encode(text))
    assert joined.decode() == text


def test_a_piece_of_a_character_prints_as_escaped_bytes():
    tokenizer = fakes.byte_level()
    first = tokenizer.encode("😀")[0]
    assert tokenizer.bytes_of(first) == b"\xf0"
    assert tokenizer.printable(first) == "bytes:\\xf0"
    assert tokenizer.printable(tokenizer.encode("a")[0]) == "a"


def test_ids_beyond_the_vocabulary_have_no_text():
    tokenizer = fakes.byte_level()
    beyond = tokenizer.vocab_size + 5
    assert tokenizer.bytes_of(beyond) == b""
    assert tokenizer.decode([beyond, *tokenizer.encode("a")]) == "a"


def test_a_decoder_that_is_not_bytewise_is_refused_by_name():
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.CTC()
    with pytest.raises(ValueError, match="'CTC' is not supported"):
        Tokenizer(backend)


def load_with(folder, config) -> Tokenizer:
    path = folder / "tokenizer.json"
    fakes.byte_level()._backend.save(str(path))
    files = ModelFiles(
        name="tiny",
        folder=str(folder),
        config={},
        format="safetensors",
        tokenizer_file=str(path),
        tokenizer_config=config,
    )
    return load_tokenizer(files)


def test_tokens_that_the_config_adds_or_calls_special_are_so(tmp_path):
    plain = load_with(tmp_path, {})
    size, word = plain.vocab_size, plain.token_id("hello")
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    added = {
        str(size): flags | {"content": "<|im_end|>", "special": True},
        str(word): flags | {"content": "hello", "special": True},
    }
    tokenizer = load_with(tmp_path, {"added_tokens_decoder": added})
    ids = tokenizer.encode("hello<|im_end|>", add_special_tokens=False)
    assert ids == [word, size] and tokenizer.decode([*ids, *plain.encode("a")]) == "a"
    broken = {"added_tokens_decoder": {"x": {}}}
    with pytest.raises(ValueError, match=r"tokenizer_config.json: added_tokens_decoder"):
        load_with(tmp_path, broken)


def test_a_tokenizer_json_loads_with_its_config(tmp_path):
    config = {"bos_token": {"content": "<bos>"}, "eos_token": "<eos>", "add_bos_token": True}
    tokenizer = load_with(tmp_path, config)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert tokenizer.encode("a")[0] == 0
    assert tokenizer.special_ids == {0, 1, 2}


def test_a_model_without_tokenizer_and_a_broken_file_are_user_errors(tmp_path):
    files = ModelFiles(name="tiny", folder=str(tmp_path), config={}, format="dummy")
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load_tokenizer(files)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 3}))
    broken = ModelFiles(
        name="tiny",
        folder=str(tmp_path),
        config={},
        format="dummy",
        tokenizer_file=str(tmp_path / "tokenizer.json"),
    )
    with pytest.raises(ValueError, match="is not a tokenizer"):
        load_tokenizer(broken)


def gguf_of(tokenizer, **fields):
    backend = json.loads(tokenizer._backend.to_str())
    vocab = backend["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [3 if token in fakes.SPECIALS else 1 for token in tokens]
    merges = [" ".join(m) if isinstance(m, list) else m for m in backend["model"]["merges"]]
    values = {"tokens": tokens, "token_type": np.array(types), "merges": merges, **fields}
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


TEXTS = ["hello world", "the two 😀 日本", " 12345 don't\n\n  x", "<end>hello"]


@pytest.mark.parametrize("pre", ["default", "gpt-2"])
def test_byte_level_gguf_metadata_gives_the_same_tokens(pre):
    reference = fakes.byte_level()
    metadata = gguf_of(reference, model="gpt2", pre=pre, bos_token_id=0, eos_token_id=1)
    rebuilt = tokenizer_from_gguf(metadata)
    for text in TEXTS:
        assert rebuilt.encode(text) == reference.encode(text)
        assert rebuilt.decode(rebuilt.encode(text)) == reference.decode(reference.encode(text))
    assert rebuilt.special_ids == reference.special_ids
    assert rebuilt.eos_token == "<eos>"


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("qwen2", "a 123 I'LL", ["a", " ", "1", "2", "3", " I", "'LL"]),
        ("llama-bpe", "a 12345", ["a", " ", "123", "45"]),
        ("tekken", "camelCase12", ["camel", "Case", "1", "2"]),
        ("gpt-4o", "camelCase's", ["camel", "Case's"]),
        ("default", "a 123 it's", ["a", " 123", " it", "'s"]),
    ],
)
def test_each_pre_tokenizer_cuts_text_its_own_way(pre, text, words):
    rebuilt = tokenizer_from_gguf(gguf_of(fakes.byte_level(), model="gpt2", pre=pre))
    pieces = rebuilt._backend.pre_tokenizer.pre_tokenize_str(text)
    assert [piece.replace("Ġ", " ") for piece, _ in pieces] == words


def test_sentencepiece_gguf_metadata_merges_by_score():
    reference = fakes.sentencepiece()
    metadata = gguf_of(reference, model="llama", unknown_token_id=3)
    del metadata["tokenizer.ggml.merges"]
    tokens = metadata["tokenizer.ggml.tokens"]
    # Sentencepiece BPE: the shorter piece was learned first and scores higher.
    metadata["tokenizer.ggml.scores"] = np.array([-float(len(t)) for t in tokens], np.float32)
    metadata["tokenizer.ggml.add_bos_token"] = False
    rebuilt = tokenizer_from_gguf(metadata)
    for text in ("Hello wide world", "a    b", "York é😀"):
        assert rebuilt.encode(text) == reference.encode(text)
        assert rebuilt.decode(rebuilt.encode(text)) == text


def test_user_defined_pieces_of_blanks_are_found_in_text():
    metadata = gguf_of(fakes.sentencepiece(prefix_blank=False), model="llama", unknown_token_id=3)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    place = tokens.index("▁▁▁▁")
    tokens[place] = "    "  # converters write these with real blanks
    types[place] = 4
    del metadata["tokenizer.ggml.merges"]
    metadata["tokenizer.ggml.scores"] = np.array([-float(len(t)) for t in tokens], np.float32)
    metadata["tokenizer.ggml.add_bos_token"] = False
    metadata["tokenizer.ggml.add_space_prefix"] = False
    rebuilt = tokenizer_from_gguf(metadata)
    assert place in rebuilt.encode("a    b")
    assert rebuilt.decode(rebuilt.encode("a    b")) == "a    b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "'bert' is not supported; known: gpt2, llama"),
        ({"pre": "nobody"}, "'nobody' is not supported; known: .*qwen2"),
        ({"token_type": np.array([1])}, "token_type must have one entry per token"),
    ],
)
def test_unknown_or_inconsistent_gguf_metadata_is_a_user_error(change, message):
    metadata = gguf_of(fakes.byte_level(), **{"model": "gpt2", "pre": "default", **change})
    with pytest.raises(ValueError, match=message):
        tokenizer_from_gguf(metadata)
