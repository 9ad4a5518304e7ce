"""Token ids to text, as they come."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from xllm.frontend.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental decoding of one sequence: look up bytes, keep an unfinished character back.

    The concatenation of all ``push`` results and ``flush`` equals ``Tokenizer.decode`` of all ids,
    whatever the chunking. No result ends inside a character. Bytes that are not UTF-8 become
    U+FFFD, as soon as they can no longer be the start of a character.

    Args:
        skip_special_tokens: special tokens have no text.
        table: bytes of every token, if not the tokenizer's own.
        at_start: the text has nothing before it (a sentencepiece leading blank is dropped); false
            for an answer, which continues its prompt.
    """

    __slots__ = ("_strip", "_table", "_tail")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        table: Sequence[bytes] | None = None,
        at_start: bool = False,
    ) -> None:
        own = tokenizer.text_bytes if skip_special_tokens else tokenizer.token_bytes
        self._table = own if table is None else table
        self._tail = b""  # bytes of the unfinished character, at most three
        self._strip = at_start and tokenizer.strips_blank

    @property
    def pending(self) -> bool:
        """Whether an unfinished character is held back."""
        return bool(self._tail)

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete; ids beyond the vocabulary have none."""
        table = self._table
        size = len(table)
        if len(token_ids) == 1:  # a step of decoding: the hot path of every stream
            (token_id,) = token_ids
            data = table[token_id] if token_id < size else b""
        else:
            data = b"".join([table[i] for i in token_ids if i < size])
        if self._tail:
            data = self._tail + data
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        return self._strip_blank(text) if self._strip and text else text

    def flush(self) -> str:
        """The rest at the sequence's end: U+FFFD for a character that was never finished."""
        text, _ = utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return text

    def _strip_blank(self, text: str) -> str:
        self._strip = False
        return text[1:] if text[0] == " " else text
