"""Banning tokens in Triton against the reference."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton import mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_equal_the_reference(dtype: torch.dtype, device, monkeypatch) -> None:
    monkeypatch.setattr(mask, "_BLOCK", 64)
    masks = torch.randint(-(2**31), 2**31 - 1, (2, 5), dtype=torch.int32, device=device)
    logits = torch.randn(4, 150, device=device).to(dtype)
    rows = torch.tensor([3, 1], device=device)
    expected = logits.clone()
    reference.mask_logits(expected, rows, masks)
    mask.mask_logits(logits, rows, masks)
    assert torch.equal(logits, expected)
    assert logits[[0, 2]].isfinite().all()
    assert logits.isinf().any()
