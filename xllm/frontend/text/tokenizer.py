"""Text to token ids and back, over the ``tokenizers`` library."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Sequence

import tokenizers

from xllm.core.grammar import Vocabulary
from xllm.frontend.text import token_bytes

_PROBE = "a"
_ANCHOR = "\n"


class Tokenizer:
    """One model's tokenizer. Thread-safe; encoding releases the interpreter lock.

    Args:
        backend: the library's tokenizer.
        bos_token_id: begins a text, if the model has such a token.
        eos_token_id: ends a text, if the model has such a token.
        adds_bos: whether encoding with special tokens begins with BOS; None asks the backend.
        adds_eos: likewise for a closing EOS.
        gives_types: whether the model is told which tokens are a pair's second text, where the
            backend gives them a type of their own.

    Raises:
        ValueError: the backend's decoder is not supported.

    Attributes:
        token_bytes: id -> UTF-8 bytes of the token (a piece of a character for some).
        text_bytes: the same with special tokens empty.
        strips_blank: decoding from the start of a text drops one leading blank (sentencepiece).
        special_ids: control tokens, which are no text.
        max_token_chars: most characters that one token can stand for.
        types_pairs: whether the tokens of a pair's second text have a type of their own.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        adds_bos: bool | None = None,
        adds_eos: bool | None = None,
        gives_types: bool = True,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.token_bytes, self.strips_blank = token_bytes.build(backend)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.text_bytes = list(self.token_bytes)
        for special in self.special_ids:
            self.text_bytes[special] = b""
        self.max_token_chars = max((len(b) for b in self.token_bytes), default=1) or 1
        self._prefix, self._suffix = self._frame(adds_bos, adds_eos)
        self._between, self._pair_suffix, typed = self._pair_frame()
        self.types_pairs = typed and gives_types
        self._printable: dict[int, str] = {}

    @property
    def vocab_size(self) -> int:
        """Largest id plus one. The model may have fewer or more (padded) rows."""
        return len(self.token_bytes)

    @property
    def bos_token(self) -> str | None:
        """Text of the BOS token."""
        return self._special_text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """Text of the EOS token."""
        return self._special_text(self.eos_token_id)

    @functools.cached_property
    def adds_prefix_blank(self) -> bool:
        """Whether a text is encoded as if a blank stood before it (sentencepiece)."""
        ids = self._encode([_PROBE])[0]
        return bool(ids) and self.token_bytes[ids[0]].startswith(b" ")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. A text that already begins with BOS gets no second one."""
        return self.framed(self._encode([text])[0], add_special_tokens)

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of several texts, in parallel."""
        return [self.framed(ids, add_special_tokens) for ids in self._encode(texts)]

    def framed(self, ids: list[int], add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text with the special tokens around it."""
        if not add_special_tokens or not (self._prefix or self._suffix):
            return ids
        prefix = [] if ids[: len(self._prefix)] == self._prefix else self._prefix
        return [*prefix, *ids, *self._suffix]

    def pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """Two texts as one prompt, and where the second begins; 0 if the model has no types."""
        head = [*self._prefix, *first, *self._between]
        return [*head, *second, *self._pair_suffix], len(head) if self.types_pairs else 0

    @property
    def frame_size(self) -> int:
        """Special tokens around one text."""
        return len(self._prefix) + len(self._suffix)

    @property
    def pair_frame_size(self) -> int:
        """Special tokens around and between two texts."""
        return len(self._prefix) + len(self._between) + len(self._pair_suffix)

    def token_at(
        self, text: str, chars: Sequence[int], *, add_special_tokens: bool = True
    ) -> list[int]:
        """For each character of ``text``, the place of its token among those that ``encode`` makes.

        A character that no token covers counts to the token after it.
        """
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        ends = [end for _, end in offsets]
        ids = self._encode([text])[0]
        added = len(self.framed(ids, add_special_tokens)) - len(ids)
        shift = added - len(self._suffix) if added else 0
        return [bisect.bisect_right(ends, char) + shift for char in chars]

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of ``text`` as it goes on from another text: nothing is put before it."""
        ids = self.encode(text, add_special_tokens=False)
        if not self.adds_prefix_blank:
            return ids
        # Sentencepiece puts a blank before every text. Behind a line break it does not.
        anchor = self.encode(_ANCHOR, add_special_tokens=False)
        anchored = self.encode(_ANCHOR + text, add_special_tokens=False)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence. Bytes that are not UTF-8 become U+FFFD."""
        table = self.text_bytes if skip_special_tokens else self.token_bytes
        size = len(table)
        text = b"".join([table[i] for i in token_ids if 0 <= i < size]).decode("utf-8", "replace")
        return text[1:] if self.strips_blank and text.startswith(" ") else text

    def bytes_of(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token; an id beyond the vocabulary has none."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def printable(self, token_id: int) -> str:
        """One token for people: its text, or ``bytes:\\xf0\\x9f`` for a piece of a character."""
        text = self._printable.get(token_id)
        if text is None:
            data = self.bytes_of(token_id)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            self._printable[token_id] = text
        return text

    def vocabulary(self, size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """What grammars know of a model with ``size`` ids."""
        return Vocabulary.of_size(
            size,
            self.token_bytes,
            self.special_ids,
            eos_token_ids,
            self.encode_inside,
        )

    def token_id(self, token: str) -> int | None:
        """Id of a vocabulary entry by its exact name."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # The fast batch call skips offsets, which nothing here needs, and releases the lock.
        batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def _frame(self, adds_bos: bool | None, adds_eos: bool | None) -> tuple[list[int], list[int]]:
        """Ids put before and after a text: the backend's post-processor, unless overruled."""
        bare = self._encode([_PROBE])[0]
        full: list[int] = self._backend.encode(_PROBE, add_special_tokens=True).ids
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        prefix, suffix = full[:start], full[start + len(bare) :]
        return (
            _overruled(prefix, adds_bos, self.bos_token_id),
            _overruled(suffix, adds_eos, self.eos_token_id),
        )

    def _pair_frame(self) -> tuple[list[int], list[int], bool]:
        """Ids between and after two texts, and whether the second has a type of its own.

        A backend without a template for pairs joins the texts as it frames one.
        """
        bare = self._encode([_PROBE])[0]
        encoding = self._backend.encode(_PROBE, _PROBE, add_special_tokens=True)
        full: list[int] = encoding.ids
        size = len(bare)
        places = [i for i in range(len(full) - size + 1) if full[i : i + size] == bare]
        if not bare or len(places) < 2:
            return [], self._suffix, False
        first, second = places[0], places[-1]
        typed = encoding.type_ids[second] != encoding.type_ids[first]
        return full[first + size : second], full[second + size :], typed

    def _special_text(self, token_id: int | None) -> str | None:
        if token_id is None:
            return None
        text: str | None = self._backend.id_to_token(token_id)
        return text


def _overruled(own: list[int], wanted: bool | None, token_id: int | None) -> list[int]:
    """The frame's ids on one side: the backend's own, where no token is named or none asked for."""
    if wanted is None or (wanted and token_id is None):
        return own
    return [token_id] if wanted and token_id is not None else []
