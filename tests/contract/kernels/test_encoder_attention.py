"""Bidirectional attention equals plain attention over each row, in every implementation."""

from __future__ import annotations

import math

import pytest
import torch

from tests.contract.kernels.harness import DTYPES, Implementation, tolerance
from xllm.hardware.kernels import reference

HEADS, HEAD_DIM = 3, 16
LENGTHS = {
    "one token": [1],
    "equal rows": [7, 7, 7],
    "mixed": [1, 19, 19, 4, 70, 3],
    "an empty row": [5, 0, 9],
}


def _plain(qkv: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    parts = []
    for row in qkv.float().split(lengths):
        q, k, v = row.view(-1, 3, HEADS, HEAD_DIM).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)).softmax(-1)
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts).to(qkv.dtype)


def _batch(lengths: list[int], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3 * HEADS * HEAD_DIM, generator=generator).to(dtype)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return qkv, starts, HEADS, HEAD_DIM**-0.5, max(lengths)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_implementations(implementation: Implementation, dtype, lengths) -> None:
    batch = _batch(lengths, dtype)
    actual = implementation.encoder_attention(*batch)
    torch.testing.assert_close(actual, _plain(batch[0], lengths), **tolerance(dtype))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_the_reference_ignores_padding_and_what_is_outside_every_row(lengths) -> None:
    qkv, *rest = _batch(lengths, torch.float32)
    beyond = torch.cat([qkv, torch.full((2, qkv.shape[1]), 7.0)])
    actual = reference.encoder_attention(beyond, *rest)[: len(qkv)]
    torch.testing.assert_close(actual, _plain(qkv, lengths))
