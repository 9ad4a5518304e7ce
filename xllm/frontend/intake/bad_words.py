"""Banned words as token sequences."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.frontend.text import Tokenizer

_ANCHOR = "\n"


def bad_word_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word as it appears inside a text: with and without a blank before.

    No sequence holds BOS or another special token that the tokenizer would add.
    """
    forms = [form for word in words for form in (word, " " + word.lstrip(" "))]
    sequences = [_inner(tokenizer, form) for form in forms]
    return tuple(dict.fromkeys(tuple(ids) for ids in sequences if ids))


def _inner(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not tokenizer.adds_prefix_blank:
        return ids
    # Sentencepiece puts a blank before every text. Behind a line break it does not.
    anchor = tokenizer.encode(_ANCHOR, add_special_tokens=False)
    anchored = tokenizer.encode(_ANCHOR + text, add_special_tokens=False)
    return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else ids
