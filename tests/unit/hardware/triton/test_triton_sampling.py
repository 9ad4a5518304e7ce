"""Sampling in Triton against the host's definition of the draws."""

from __future__ import annotations

import numpy as np
import torch

from xllm.execution.sampling.rng import exponential, row_keys
from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton import sampling

VOCAB = 300


def _sample(logits: torch.Tensor, temperatures: list[float], device) -> tuple[torch.Tensor, ...]:
    rows = len(logits)
    keys = torch.from_numpy(row_keys(np.arange(rows), np.arange(rows) + 5)).to(device)
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    best = torch.empty(rows, device=device)
    table = torch.zeros(rows, 8, dtype=torch.int32, device=device)
    index = torch.arange(rows, device=device) * 8 + 3
    index[-1] = -1
    inverse = torch.tensor([1 / t if t else 0.0 for t in temperatures], device=device)
    sampling.sample_tokens(logits, inverse, keys, tokens, best, table, index)
    return tokens, best, table, keys


def test_greedy_rows_take_the_first_largest_logit(device, monkeypatch) -> None:
    monkeypatch.setattr(sampling, "choose_share", lambda rows: (128, 64))
    logits = torch.randn(3, VOCAB, device=device)
    logits[0, [70, 130, 250]] = 9.0
    tokens, best, table, _ = _sample(logits, [0.0] * 3, device)
    expected = logits.max(dim=1)
    assert tokens.tolist() == expected.indices.tolist()
    assert tokens[0] == 70
    torch.testing.assert_close(best, expected.values)
    assert table[:2, 3].tolist() == tokens[:2].tolist()
    assert table[2].count_nonzero() == 0


def test_drawing_rows_draw_what_the_host_definition_draws(device) -> None:
    logits = torch.randn(16, VOCAB, device=device)
    tokens, _, _, keys = _sample(logits, [0.7] * 16, device)
    draws = exponential(keys, torch.arange(VOCAB, dtype=torch.int32, device=device))
    expected = (logits / 0.7 - draws.log()).argmax(dim=1)
    assert tokens.tolist() == expected.tolist()
    assert len(set(tokens.tolist())) > 4


def test_the_reference_draws_the_same_tokens(device) -> None:
    logits = torch.randn(4, VOCAB, device=device)
    tokens, best, table, keys = _sample(logits, [0.0, 0.5, 1.0, 2.0], device)
    expected = [torch.zeros_like(t) for t in (tokens, best, table)]
    inverse = torch.tensor([0.0, 2.0, 1.0, 0.5], device=device)
    index = torch.tensor([3, 11, 19, -1], device=device)
    reference.sample_tokens(logits, inverse, keys, *expected, index)
    assert expected[0].tolist() == tokens.tolist()
    torch.testing.assert_close(expected[1], best)
    assert expected[2].tolist() == table.tolist()


def test_tokens_do_not_depend_on_the_shares_of_a_row(device, monkeypatch) -> None:
    logits = torch.randn(3, VOCAB, device=device).bfloat16()
    expected = _sample(logits, [0.0, 0.7, 1.0], device)
    for share in ((32, 32), (64, 32), (256, 64)):
        monkeypatch.setattr(sampling, "choose_share", lambda rows, share=share: share)
        for actual, same in zip(_sample(logits, [0.0, 0.7, 1.0], device), expected, strict=True):
            assert torch.equal(actual, same)


def test_a_row_with_a_nan_logit_reports_it(device) -> None:
    logits = torch.randn(2, VOCAB, device=device)
    logits[0, 17] = float("nan")
    _, best, _, _ = _sample(logits, [0.0, 1.0], device)
    assert best.isnan().tolist() == [True, False]
