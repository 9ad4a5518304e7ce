"""``min_tokens`` of a constrained row, which ends early where its grammar has nothing else left."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from xllm.core.grammar.masks import TOKENS_PER_WORD
from xllm.core.utils.arrays import Int32Array


class Minimum:
    """Bans what could end a row until ``num_tokens`` were generated.

    Args:
        num_tokens: ``min_tokens`` of the request.
        banned: ids below ``vocab_size`` count, others are never sampled.
        vocab_size: tokens that a mask is of.
    """

    __slots__ = ("_kept", "_words", "num_tokens")

    def __init__(self, num_tokens: int, banned: Iterable[int], vocab_size: int) -> None:
        self.num_tokens = num_tokens
        bits: dict[int, int] = {}
        for token in banned:
            if 0 <= token < vocab_size:
                word, bit = divmod(token, TOKENS_PER_WORD)
                bits[word] = bits.get(word, 0) | 1 << bit
        self._words = np.fromiter(bits, np.int64, len(bits))
        self._kept = ~np.fromiter(bits.values(), np.uint32, len(bits)).view(np.int32)

    def hold(self, mask: Int32Array, end_only: Int32Array) -> None:
        """Take the banned tokens out of ``mask`` (W,), unless only ends are left of it then: a
        grammar that is complete and cannot go on is over, as no other token would follow it.

        Args:
            mask: what the grammar allows.
            end_only: (W,) the tokens that end every text.
        """
        ends = mask & end_only
        mask[self._words] &= self._kept
        if not mask.any():
            mask[:] = ends
