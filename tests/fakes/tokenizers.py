"""Tiny tokenizers of both kinds, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from xllm.frontend.text.token_bytes import BYTE_OF_CHAR
from xllm.frontend.text.tokenizer import Tokenizer

SPECIALS = ("<bos>", "<eos>", "<end>")
_CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
_WORDS = ("he", "hel", "hell", "hello", "wo", "wor", "worl", "world", "th", "the", "tw", "two")


def byte_level(*, pairs: Sequence[bytes] = (), **options: Any) -> Tokenizer:
    """Byte-level BPE: three special tokens, 256 bytes, pairs of them, words, their pieces."""
    vocab = {token: i for i, token in enumerate(SPECIALS)}
    for byte in range(256):
        vocab[_CHAR_OF_BYTE[byte]] = len(vocab)
    merges = []
    for first, second in pairs:
        merges.append((_CHAR_OF_BYTE[first], _CHAR_OF_BYTE[second]))
        vocab["".join(merges[-1])] = len(vocab)
    for word in (*_WORDS, *("Ġ" + word for word in _WORDS)):
        if len(word) > 1 and word not in vocab:
            head = word[:-1]
            if head not in vocab:
                merges.append((head[0], head[1:]))
                vocab[head] = len(vocab)
            merges.append((head, word[-1]))
            vocab[word] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _with_specials(backend, options)


def sentencepiece(*, prefix_blank: bool = True, **options: Any) -> Tokenizer:
    """Sentencepiece BPE with byte fallback; by default a blank is put before every text."""
    pieces = ["▁", "▁▁", "▁▁▁▁", "a", "b", "H", "e", "l", "o", "w", "i", "d", "r", "Y", "k", "N"]
    pieces += ["▁H", "▁He", "▁Hel", "▁Hell", "▁Hello", "▁w", "▁wi", "▁wid", "▁wide"]
    pieces += ["▁wo", "▁wor", "▁worl", "▁world", "▁Y", "▁Yo", "▁Yor", "▁York", "Yo", "Yor", "York"]
    vocab = {token: i for i, token in enumerate((*SPECIALS, "<unk>"))}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in pieces:
        vocab[piece] = len(vocab)
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=len)
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    head = [normalizers.Prepend("▁")] if prefix_blank else []
    backend.normalizer = normalizers.Sequence([*head, normalizers.Replace(" ", "▁")])
    tail = [decoders.Strip(" ", 1, 0)] if prefix_blank else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    return _with_specials(backend, options)


def _with_specials(backend: tokenizers.Tokenizer, options: dict[str, Any]) -> Tokenizer:
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIALS])
    return Tokenizer(backend, bos_token_id=0, eos_token_id=1, **options)
