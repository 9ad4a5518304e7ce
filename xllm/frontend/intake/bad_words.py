"""Banned words as token sequences."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.frontend.text import Tokenizer


def bad_word_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word as it appears inside a text: with and without a blank before.

    No sequence holds BOS or another special token that the tokenizer would add.
    """
    forms = [form for word in words for form in (word, " " + word.lstrip(" "))]
    sequences = [tokenizer.encode_inside(form) for form in forms]
    return tuple(dict.fromkeys(tuple(ids) for ids in sequences if ids))
