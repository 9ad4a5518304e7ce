"""Choosing tokens equals the reference, draw for draw."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.contract.kernels.harness import Implementation, random
from xllm.hardware.kernels import reference


def _keys(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    bounds = (-(2**31), 2**31 - 1)
    padded = torch.randint(*bounds, (2, rows + 3), generator=generator, dtype=torch.int32)
    return padded[:, :rows]


@pytest.mark.parametrize("vocab_size", [1, 3, 8, 100, 1009])
def test_greedy_takes_the_first_largest(implementation: Implementation, vocab_size: int) -> None:
    logits = random(40, vocab_size).bfloat16().float().clamp_(max=1.0)  # many equal maxima
    tokens, best = implementation.choose_tokens(logits)
    expected, largest = reference.choose_tokens(logits)
    assert torch.equal(tokens, expected)
    assert torch.equal(best, largest)
    first = (logits == logits.amax(1, keepdim=True)).int().argmax(1)
    assert torch.equal(tokens, first)


@pytest.mark.parametrize("vocab_size", [2, 8, 100, 1009, 5003])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_draws_equal_the_reference(
    implementation: Implementation, vocab_size: int, spread: float
) -> None:
    settings = list(
        itertools.product(
            (0.0, 0.5, 1.0, 3.0), (0.0, 0.05), (1, 3, 40, 10**9), (1e-6, 0.1, 0.9, 1.0)
        )
    )
    inverse, min_p, top_k, top_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    for seed, rounded in ((1, False), (2, True)):
        logits = random(len(settings), vocab_size, seed=seed) * spread
        if rounded:
            logits = logits.bfloat16().float()  # ties at every cut
        arguments = (
            logits,
            inverse,
            min_p.log(),
            top_k.clamp(max=vocab_size),
            top_p,
            _keys(len(settings), seed),
        )
        tokens, best = implementation.choose_tokens(*arguments)
        expected, largest = reference.choose_tokens(*arguments)
        assert torch.equal(best, largest)
        assert torch.equal(tokens, expected)


def test_filters_that_are_off_may_be_left_out(implementation: Implementation) -> None:
    logits, keys, ones = random(20, 500), _keys(20, 3), torch.ones(20)
    off = (torch.full((20,), -torch.inf), torch.full((20,), 500), ones)
    plain, _ = implementation.choose_tokens(logits, ones, keys=keys)
    explicit, _ = implementation.choose_tokens(logits, ones, *off, keys)
    assert torch.equal(plain, explicit)
    assert torch.equal(plain, reference.choose_tokens(logits, ones, keys=keys)[0])


def test_rows_of_a_wider_tensor(implementation: Implementation) -> None:
    wide = random(6, 300)
    wide[:, 250:] = 100.0
    tokens, _ = implementation.choose_tokens(wide[:, :250])
    assert torch.equal(tokens, wide[:, :250].argmax(1))


def test_a_broken_row_is_told_and_disturbs_no_other(implementation: Implementation) -> None:
    logits, inverse, keys = random(6, 77), torch.tensor([0.0, 1.0] * 3), _keys(6, 4)
    clean, _ = implementation.choose_tokens(logits, inverse, keys=keys)
    logits[1, 40] = float("nan")
    logits[2, 76] = float("inf")
    logits[3] = -float("inf")
    logits[4] = float("nan")
    tokens, best = implementation.choose_tokens(logits, inverse, keys=keys)
    assert torch.isfinite(best).tolist() == [True, False, False, False, False, True]
    assert torch.equal(tokens[[0, 5]], clean[[0, 5]])
    assert ((tokens >= 0) & (tokens < 77)).all()


def test_no_rows(implementation: Implementation) -> None:
    tokens, best = implementation.choose_tokens(torch.empty(0, 9))
    assert tokens.shape == best.shape == (0,)
