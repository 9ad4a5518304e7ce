"""Banning tokens by bit masks equals the reference."""

from __future__ import annotations

import pytest
import torch

from tests.contract.kernels.harness import Implementation, random
from xllm.hardware.kernels import reference


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 70_001])
def test_masks_equal_the_reference(implementation: Implementation, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    words = -(-vocab_size // 32)
    masks = torch.randint(-(2**31), 2**31 - 1, (3, words), generator=generator, dtype=torch.int32)
    masks[1] = -1
    masks[2] = 0
    rows = torch.tensor([4, 0, 2])
    logits = random(5, vocab_size + 3)[:, :vocab_size]  # rows need not touch each other
    expected = logits.clone()
    reference.mask_logits(expected, rows, masks)
    implementation.mask_logits(logits, rows, masks)
    assert torch.equal(logits, expected)
    narrow = random(5, vocab_size).bfloat16()
    implementation.mask_logits(narrow, rows, masks)
    assert torch.equal(narrow.isinf(), expected.isinf())
    bit = [(int(masks[0, i // 32]) >> (i % 32)) & 1 for i in range(vocab_size)]
    assert logits[4].isfinite().int().tolist() == bit
    assert logits[2].isinf().all() and logits[[0, 1, 3]].isfinite().all()
