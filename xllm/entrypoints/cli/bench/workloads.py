"""Seeded, replayable requests: token ids in, an exact number of tokens out.

A request is greedy and ignores end tokens, so every engine generates the same number of tokens for
it. The generators are pinned by checksum in the tests: figures of different days stay comparable.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# What ``--dataset`` accepts, with its help.
SPECS = (
    "sharegpt-like (chat-like lengths), fixed:IN:OUT, shared-prefix[:PREFIX:UNIQUE:OUT], or a file "
    'of JSON lines {"prompt": [ids], "max_tokens": n}'
)

# Special tokens lie at both ends of most vocabularies; prompts keep away from them.
_LOWEST_ID = 100
_TOP_IDS = 2000
_SMALL_VOCAB = 2 * (_LOWEST_ID + _TOP_IDS)  # toy models: every id will do
_SHARED_PREFIX = (2048, 64, 64)
_SHIFT = 7919


@dataclasses.dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request: prompt as token ids, and how many tokens to generate."""

    prompt_token_ids: list[int]
    max_tokens: int


def load(spec: str, count: int, vocab_size: int, seed: int | None = None) -> list[BenchRequest]:
    """The requests of a dataset.

    Args:
        spec: one of ``SPECS``.
        count: how many; a file may hold fewer.
        vocab_size: prompt ids stay well inside it.
        seed: another seed than the dataset's own.

    Raises:
        ValueError: no such dataset, or a file of another form.
    """
    name, *sizes = spec.split(":")
    if name == "sharegpt-like" and not sizes:
        return sharegpt_like(count, vocab_size, 1234 if seed is None else seed)
    if name == "fixed" and len(sizes) == 2:
        num_input, num_output = _sizes(spec, sizes)
        return fixed(count, num_input, num_output, vocab_size, 7 if seed is None else seed)
    if name == "shared-prefix" and len(sizes) in (0, 3):
        shared, unique, num_output = _sizes(spec, sizes) or _SHARED_PREFIX
        seed = 11 if seed is None else seed
        return shared_prefix(count, shared, unique, num_output, vocab_size, seed)
    if Path(spec).is_file():
        return from_file(Path(spec))[:count]
    raise ValueError(f"--dataset {spec!r}: neither a file nor a dataset; known: {SPECS}")


def sharegpt_like(count: int, vocab_size: int, seed: int) -> list[BenchRequest]:
    """Lognormal lengths: prompts of about 220 tokens (4 to 2,048), answers of 200 (4 to 1,024)."""
    rng = np.random.default_rng(seed)
    num_input = _lognormal(rng, count, mean=220, sigma=1.05, shift=-0.045, high=2048)
    num_output = _lognormal(rng, count, mean=200, sigma=0.85, shift=0.03, high=1024)
    return [
        BenchRequest(_token_ids(rng, int(length), vocab_size), int(output))
        for length, output in zip(num_input, num_output, strict=True)
    ]


def fixed(
    count: int, num_input: int, num_output: int, vocab_size: int, seed: int
) -> list[BenchRequest]:
    """Equal lengths, different random prompts."""
    rng = np.random.default_rng(seed)
    return [BenchRequest(_token_ids(rng, num_input, vocab_size), num_output) for _ in range(count)]


def shared_prefix(
    count: int, num_shared: int, num_unique: int, num_output: int, vocab_size: int, seed: int
) -> list[BenchRequest]:
    """One prefix that every prompt begins with, then tokens of its own."""
    rng = np.random.default_rng(seed)
    shared = _token_ids(rng, num_shared, vocab_size)
    return [
        BenchRequest(shared + _token_ids(rng, num_unique, vocab_size), num_output)
        for _ in range(count)
    ]


def from_file(path: Path) -> list[BenchRequest]:
    """Requests of a JSON lines file.

    Raises:
        ValueError: a line has another form; the message names it.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            prompt = [int(token) for token in record["prompt"]]
            found.append(BenchRequest(prompt, int(record["max_tokens"])))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"--dataset {path}:{number}: not a request with prompt and max_tokens: {error!r}"
            ) from None
    return found


def shifted(requests: Sequence[BenchRequest], run: int, vocab_size: int) -> list[BenchRequest]:
    """The same lengths with other tokens, so that a repeated run finds no cached prefix."""
    if run == 0:
        return list(requests)
    low, high = _id_range(vocab_size)
    return [
        BenchRequest(
            [low + (t - low + run * _SHIFT) % (high - low) for t in r.prompt_token_ids],
            r.max_tokens,
        )
        for r in requests
    ]


def _lognormal(
    rng: np.random.Generator, count: int, *, mean: int, sigma: float, shift: float, high: int
) -> np.ndarray:
    draws = rng.lognormal(np.log(mean) - sigma**2 / 2 + shift, sigma, count)
    return np.clip(draws.round().astype(int), 4, high)


def _token_ids(rng: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    ids: list[int] = rng.integers(*_id_range(vocab_size), size=count).tolist()
    return ids


def _id_range(vocab_size: int) -> tuple[int, int]:
    if vocab_size < _SMALL_VOCAB:
        return 0, vocab_size
    return _LOWEST_ID, vocab_size - _TOP_IDS


def _sizes(spec: str, sizes: Sequence[str]) -> tuple[int, ...]:
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"--dataset {spec!r}: lengths must be positive whole numbers of tokens")
    return tuple(map(int, sizes))
