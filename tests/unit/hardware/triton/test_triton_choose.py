"""Choosing tokens without a sort equals the reference, which sorts."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton import choose, launch

ROWS = [  # inverse temperature, min-p, top-k, top-p
    (0.0, 0.0, 5, 0.5),
    (1.0, 0.0, 10**9, 1.0),
    (0.5, 0.05, 10**9, 1.0),
    (1.0, 0.0, 1, 1.0),
    (3.0, 0.0, 3, 1.0),
    (0.5, 0.0, 40, 0.9),
    (1.0, 0.0, 10**9, 0.9),
    (1.0, 0.0, 10**9, 1e-6),
    (1.0, 0.2, 7, 0.6),
]


def _arguments(vocab_size: int, rounded: bool, device, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(ROWS), vocab_size, generator=generator) * 2
    if rounded:
        logits = logits.bfloat16().float()  # ties at every cut
    keys = torch.randint(
        -(2**31), 2**31 - 1, (2, len(ROWS)), generator=generator, dtype=torch.int32
    )
    inverse, min_p, top_k, top_p = (torch.tensor(column) for column in zip(*ROWS, strict=True))
    arguments = (logits, inverse, min_p.log(), top_k.clamp(max=vocab_size), top_p, keys)
    return tuple(argument.to(device) for argument in arguments)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch, device) -> None:
    monkeypatch.setattr(choose, "_GROUP", 16)
    monkeypatch.setattr(choose, "_TILE", 4)


@pytest.mark.parametrize(("vocab_size", "rounded"), [(5, False), (300, False), (600, True)])
def test_draws_equal_the_reference(vocab_size: int, rounded: bool, device) -> None:
    arguments = _arguments(vocab_size, rounded, device)
    tokens, best = choose.choose_tokens(*arguments)
    expected, largest = reference.choose_tokens(*arguments)
    assert tokens.tolist() == expected.tolist()
    assert torch.equal(best, largest)


def test_narrow_logits_are_chosen_from_as_if_widened(device) -> None:
    logits, *rest = _arguments(600, True, device)
    logits[:, ::3] = -torch.inf  # as masks leave them
    tokens, best = choose.choose_tokens(logits.bfloat16(), *rest)
    expected, largest = reference.choose_tokens(logits, *rest)
    assert tokens.tolist() == expected.tolist()
    assert best.dtype == torch.float32 and torch.equal(best, largest)


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_k", [2, 15, 70, 500, 599])
def test_few_and_many_tokens_are_cut_exactly(top_k: int, spread: float, device) -> None:
    """Fewer than there are groups, more, and nearly all; in flat rows and in steep ones."""
    rows = 6
    generator = torch.Generator().manual_seed(top_k)
    logits = torch.randn(rows, 600, generator=generator) * spread
    logits[1] = logits[1].sort(descending=True).values  # the best tokens share groups
    logits[2] = logits[2].bfloat16().float()
    keys = torch.randint(-(2**31), 2**31 - 1, (2, rows), generator=generator, dtype=torch.int32)
    top_p = torch.tensor([1.0, 0.95, 0.9, 0.5, 0.2, 0.01])
    arguments = (logits, torch.ones(rows), None, torch.full((rows,), top_k), top_p, keys)
    arguments = tuple(None if a is None else a.to(device) for a in arguments)
    tokens, _ = choose.choose_tokens(*arguments)
    expected, _ = reference.choose_tokens(*arguments)
    assert tokens.tolist() == expected.tolist()


def test_groups_grow_with_the_vocabulary(device, monkeypatch) -> None:
    monkeypatch.setattr(choose, "_MAX_GROUPS", 8)
    arguments = _arguments(600, False, device, seed=2)
    tokens, _ = choose.choose_tokens(*arguments)
    expected, _ = reference.choose_tokens(*arguments)
    assert tokens.tolist() == expected.tolist()


def test_a_million_tokens_are_counted(device, monkeypatch) -> None:
    """Of whole groups, where fewer than ``top_k`` are left and every group has one of them."""
    if launch.INTERPRETED:
        monkeypatch.setattr(choose, "_TILE", 2048)  # all at once, which takes a tenth as long
    vocab_size = (1 << 20) - 1
    logits = torch.full((1, vocab_size), -torch.inf, device=device)
    logits[0, ::512] = 0.0
    logits[0, 512] = 2.0
    keys = torch.zeros(2, 1, dtype=torch.int32, device=device)
    top_k, top_p = torch.tensor([3000], device=device), torch.tensor([1e-3], device=device)
    tokens, _ = choose.choose_tokens(
        logits, torch.ones(1, device=device), top_k=top_k, top_p=top_p, keys=keys
    )
    assert tokens.tolist() == [512]


@pytest.mark.parametrize("kept", range(8))
def test_filters_may_be_left_out(kept: int, device) -> None:
    logits, inverse, *every, keys = _arguments(300, False, device, seed=1)
    filters = [given if kept >> bit & 1 else None for bit, given in enumerate(every)]
    tokens, _ = choose.choose_tokens(logits, inverse, *filters, keys)
    expected, _ = reference.choose_tokens(logits, inverse, *filters, keys)
    assert tokens.tolist() == expected.tolist()


def test_greedy_takes_the_first_largest_and_broken_rows_are_told(device) -> None:
    logits = torch.randn(4, 300, device=device)
    logits[0, [70, 299]] = 9.0
    logits[1, 3] = float("nan")
    logits[2] = -float("inf")
    tokens, best = choose.choose_tokens(logits)
    assert tokens[0] == 70
    assert tokens[3] == logits[3].argmax()
    assert torch.isfinite(best).tolist() == [True, False, False, True]
    assert ((tokens >= 0) & (tokens < 300)).all()
    keys = torch.zeros(2, 4, dtype=torch.int32, device=device)
    drawn, _ = choose.choose_tokens(logits, torch.ones(4, device=device), keys=keys)
    assert ((drawn >= 0) & (drawn < 300)).all()


def test_every_mixture_of_filters_is_one_kernel(device, monkeypatch) -> None:
    """What a worker compiles before its first request serves all of them, and greedy rows."""
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **_: seen.append(any(arg is None for arg in args))

    monkeypatch.setattr(choose, "_choose_kernel", Kernel())
    logits, inverse, *every, keys = _arguments(300, False, device)
    for rows in (3, len(ROWS), 2):
        for kept in range(8):
            filters = [given[:rows] if kept >> bit & 1 else None for bit, given in enumerate(every)]
            choose.choose_tokens(logits[:rows], inverse[:rows], *filters, keys[:, :rows])
    choose.choose_tokens(logits)
    assert len(seen) == 25 and not any(seen)
