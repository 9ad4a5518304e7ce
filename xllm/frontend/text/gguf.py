"""A tokenizer rebuilt from GGUF metadata (``tokenizer.ggml.*``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from xllm.frontend.text.tokenizer import Tokenizer

# GGUF token types.
_CONTROL, _USER_DEFINED = 3, 4
_BLANK = "▁"  # sentencepiece's blank

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"


def _cased(suffix: str) -> str:
    """Words split where lower case turns to upper case."""
    return f"{_CASED}{_UPPER}*{_LOWER}+{suffix}|{_CASED}{_UPPER}+{_LOWER}*{suffix}"


_LLAMA3 = _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _MARKS + _TAIL
_QWEN2 = _CONTRACTIONS + _WORDS + r"|\p{N}" + _MARKS + _TAIL
_TEKKEN = _cased("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_GPT4O = _cased(_CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL


class _Split(NamedTuple):
    """How one ``tokenizer.ggml.pre`` cuts text into words.

    Without a ``pattern`` GPT-2's own is used. ``whole_words``: a word that is in the vocabulary is
    one token, whatever the merges say.
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    adds_bos: bool = False


_GPT2 = _Split()
_DIGITS = _Split(single_digits=True)
_SPLITS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "mpt": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _Split(_LLAMA3, whole_words=True, adds_bos=True),
    "llama3": _Split(_LLAMA3, whole_words=True, adds_bos=True),
    "llama-v3": _Split(_LLAMA3, whole_words=True, adds_bos=True),
    "falcon3": _Split(_LLAMA3, whole_words=True, adds_bos=True),
    "smaug-bpe": _Split(_LLAMA3),
    "dbrx": _Split(_LLAMA3),
    "qwen2": _Split(_QWEN2, nfc=True),
    "deepseek-r1-qwen": _Split(_QWEN2, nfc=True),
    "stablelm2": _Split(_QWEN2),
    "tekken": _Split(_TEKKEN, whole_words=True),
    "gpt-4o": _Split(_GPT4O),
    "llama4": _Split(_GPT4O),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Rebuild the tokenizer that a GGUF file describes.

    Args:
        metadata: the file's metadata, as ``core.utils.gguf.read_header`` gives it.

    Raises:
        ValueError: no tokenizer inside, or one of an unknown kind.
    """
    fields = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = fields.get("model")
    if "tokens" not in fields or kind not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model {kind!r} is not supported; known: gpt2, llama")
    num_tokens, types = len(fields["tokens"]), fields.get("token_type")
    for name in ("token_type", "scores"):
        if name in fields and len(fields[name]) != num_tokens:
            raise ValueError(f"tokenizer.ggml.{name} must have one entry per token")
    if kind == "gpt2":
        backend, adds_bos = _byte_level(fields)
    else:
        backend, adds_bos = _sentencepiece(fields), True
    if types is not None:
        _add_special_tokens(backend, fields["tokens"], types, _BLANK if kind == "llama" else " ")
    return Tokenizer(
        backend,
        bos_token_id=_token_id(fields, "bos_token_id"),
        eos_token_id=_token_id(fields, "eos_token_id"),
        adds_bos=bool(fields.get("add_bos_token", adds_bos)),
        adds_eos=bool(fields.get("add_eos_token", False)),
    )


def _token_id(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return int(value) if value is not None and value < len(fields["tokens"]) else None


def _byte_level(fields: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, bool]:
    name = fields.get("pre", "default")
    split = _SPLITS.get(name)
    if split is None:
        known = ", ".join(sorted(_SPLITS))
        raise ValueError(f"tokenizer.ggml.pre {name!r} is not supported; known: {known}")
    vocab = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("merges", ())]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, ignore_merges=split.whole_words)
    )
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, split.adds_bos


def _sentencepiece(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Sentencepiece BPE: no pre-splitting, merges by score, bytes for the unknown."""
    types = fields.get("token_type")
    tokens = list(fields["tokens"])
    scores = np.array(fields.get("scores", np.zeros(len(tokens))), dtype=np.float64)
    if types is not None:
        # Sentencepiece never splits user-defined tokens: their merges come before all others.
        user_defined = np.flatnonzero(np.asarray(types) == _USER_DEFINED)
        for i in user_defined.tolist():
            tokens[i] = tokens[i].replace(" ", _BLANK)
        scores[user_defined] = np.inf
    vocab = {token: i for i, token in enumerate(tokens)}
    if fields.get("merges"):
        merges = [tuple(merge.split(" ", 1)) for merge in fields["merges"]]
    else:
        merges = _merges_from_scores(tokens, scores, vocab)
    unknown = tokens[int(fields.get("unknown_token_id", 0))]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix_blank = bool(fields.get("add_space_prefix", True))
    steps = [normalizers.Prepend(_BLANK)] if prefix_blank else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
    closing = [decoders.Strip(" ", 1, 0)] if prefix_blank else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *closing]
    )
    return backend


def _merges_from_scores(
    tokens: list[str], scores: np.ndarray[Any, Any], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every way to build a token from two others, best token first; among equals the longest."""
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    merges = []
    for i in np.lexsort((-lengths, -scores)).tolist():
        token = tokens[i]
        splits = [
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in vocab and (right := token[cut:]) in vocab
        ]
        if len(splits) > 1:
            splits.sort(key=lambda split: (vocab[split[0]], vocab[split[1]]))
        merges += splits
    return merges


def _add_special_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], types: Any, blank: str
) -> None:
    kinds = np.asarray(types)
    for kind in (_CONTROL, _USER_DEFINED):
        special = kind == _CONTROL
        added = [
            AddedToken(tokens[i].replace(" ", blank), normalized=False, special=special)
            for i in np.flatnonzero(kinds == kind).tolist()
            if tokens[i]
        ]
        backend.add_special_tokens(added) if special else backend.add_tokens(added)
