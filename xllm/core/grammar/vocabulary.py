"""A vocabulary as grammars see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token that can be sampled.

    ``token_bytes[i]`` is what token ``i`` adds to a text; empty for ids that stand for nothing,
    which no grammar ever allows. Special tokens are no text. ``eos_token_ids`` end an answer, and
    are allowed where its grammar may end.
    """

    token_bytes: Sequence[bytes]
    special_ids: Collection[int]
    eos_token_ids: Sequence[int]  # at least one
    encode: Callable[[str], list[int]]

    @classmethod
    def of_size(
        cls,
        size: int,
        token_bytes: Sequence[bytes],
        special_ids: Collection[int],
        eos_token_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> Vocabulary:
        """Cut or padded to the ``size`` ids that the model can sample."""
        table = [*token_bytes[:size], *[b""] * (size - len(token_bytes))]
        ends = tuple(i for i in eos_token_ids if i < size)
        specials = frozenset(i for i in (*special_ids, *ends) if i < size)
        return cls(table, specials, ends, encode)
