"""What bytes a token stands for: the tokenizer's decoder, applied once per vocabulary entry.

Decoders of generative models are byte-wise: the text of a sequence is the UTF-8 reading of its
tokens' bytes, joined. With a table of those bytes, decoding is a look-up and a join, and an
incremental decoder never has to look back.

* byte-level BPE: a token's characters map one to one to bytes;
* WordPiece: a token begins with a blank unless it continues a word (``##``);
* sentencepiece: ``▁`` stands for a blank, ``<0xNN>`` for one byte, and one leading blank of the
  whole text may be dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tokenizers


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: visible Latin-1 characters map to themselves, others up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(visible)]
    alphabet = {chr(b): b for b in visible}
    alphabet.update({chr(0x100 + i): b for i, b in enumerate(hidden)})
    return alphabet


BYTE_OF_CHAR = _byte_level_alphabet()
_TO_LATIN1 = {ord(char): byte for char, byte in BYTE_OF_CHAR.items()}
# Characters that stand for no byte must fail the Latin-1 encoding below; those of Latin-1 itself
# that are not in the alphabet are moved out of its range.
_TO_LATIN1.update({c: 0xFFFF for c in range(256) if chr(c) not in BYTE_OF_CHAR})
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(NamedTuple):
    """The table. ``strips_blank``: a text from the very start drops one leading blank."""

    table: list[bytes]  # index: token id; unused ids are empty
    strips_blank: bool


def build(backend: tokenizers.Tokenizer) -> TokenBytes:
    """Bytes of every token of ``backend``.

    Raises:
        ValueError: the decoder is of a kind that is not byte-wise.
    """
    state = backend.decoder.__getstate__() if backend.decoder is not None else b"null"
    to_bytes, strips_blank = _compile(json.loads(state))
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = to_bytes(token)
    return TokenBytes(table, strips_blank)


def _compile(decoder: Any) -> tuple[Callable[[str], bytes], bool]:
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    byte_level = byte_fallback = strips_blank = False
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                strips_blank = start == 1
            case {"type": "Metaspace", "replacement": str(mark), **rest}:
                replacements.append((mark, " "))
                strips_blank = rest.get("prepend_scheme", "always") != "never"
            case {"type": "WordPiece", "prefix": str(mark)}:
                return _word_pieces(mark), True
            case _:
                kind = step["type"] if step else None
                raise ValueError(f"tokenizer decoder {kind!r} is not supported: {json.dumps(step)}")
    if byte_level:
        return _byte_level, strips_blank
    return _pieces(replacements, byte_fallback), strips_blank


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:  # an added token, written as plain text
        return token.encode()


def _word_pieces(mark: str) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        continues = token.startswith(mark) and token != mark
        return (token[len(mark) :] if continues else f" {token}").encode()

    return to_bytes


def _pieces(replacements: list[tuple[str, str]], byte_fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return to_bytes
