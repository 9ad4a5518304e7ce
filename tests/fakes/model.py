"""A model without weights whose next token depends on every token it can see.

Each cache group is one "attention layer". The value stored at a position mixes what the layers
before computed there; what a layer computes at a position is the weighted sum of the values in its
window. So a token that was written to a wrong slot, read from a stale block or forgotten in any
group changes the next token. Arithmetic wraps modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.uint64]
# Reads the stored values of one group at positions first .. last (exclusive).
Read = Callable[[int, int, int], Values]
Write = Callable[[int, int, Values], None]


def mix(values: Values, salt: int) -> Values:
    """A bijective scramble (the splitmix64 finalizer)."""
    mixed = values + np.uint64((salt * 0x9E3779B97F4A7C15) & (2**64 - 1))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def forward(
    tokens: npt.NDArray[np.int32],
    start: int,
    windows: Sequence[int | None],
    read: Read,
    write: Write,
) -> Values:
    """Compute positions ``start ..`` from their tokens; the hidden value at each of them.

    Args:
        windows: per group, its window or None for full attention.
        read, write: access to the stored values, ``(group, first, last)`` and
            ``(group, first, values)``.
    """
    end = start + len(tokens)
    positions = np.arange(start, end).astype(np.uint64)
    hidden = mix(tokens.astype(np.uint64), 1)
    for group, window in enumerate(windows):
        write(group, start, mix(hidden ^ (positions << np.uint64(20)), 2 + group))
        first = 0 if window is None else max(0, start - window + 1)
        stored = read(group, first, end)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(stored, dtype=np.uint64)])
        upper = np.arange(start, end) + 1 - first
        lower = np.zeros_like(upper) if window is None else np.maximum(0, upper - window)
        hidden = mix(sums[upper] - sums[lower], 100 + group)
    return hidden


def sample(hidden: np.uint64, seed: int, position: int, vocab_size: int) -> int:
    """The token at ``position`` from the hidden value before it."""
    salted = mix(np.array([hidden], np.uint64), (seed * 1_000_003 + position) & (2**64 - 1))
    return int(salted[0] % np.uint64(vocab_size))


def logprob(hidden: np.uint64, token: int) -> float:
    """A made-up logprob of ``token`` after ``hidden``."""
    return -float(mix(np.array([hidden], np.uint64), 7 + token)[0] % np.uint64(1000)) / 100


class ReferenceModel:
    """The same model on one contiguous sequence: what a scheduler must reproduce."""

    def __init__(self, windows: Sequence[int | None], vocab_size: int) -> None:
        self._windows = windows
        self._vocab_size = vocab_size

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        seed: int = 0,
        stop_token_ids: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> list[int]:
        """The tokens of a solo run, stop token included."""
        stores = [np.zeros(len(prompt) + max_tokens, np.uint64) for _ in self._windows]

        def read(group: int, first: int, last: int) -> Values:
            return stores[group][first:last]

        def write(group: int, first: int, values: Values) -> None:
            stores[group][first : first + len(values)] = values

        tokens, start, output = list(prompt), 0, []
        while len(output) < max_tokens:
            chunk = np.array(tokens[start:], np.int32)
            hidden = forward(chunk, start, self._windows, read, write)[-1]
            start = len(tokens)
            token = sample(hidden, seed, len(tokens), self._vocab_size)
            tokens.append(token)
            output.append(token)
            if token in stop_token_ids and len(output) > min_tokens:
                break
        return output
