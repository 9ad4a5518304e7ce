"""Masks and choices compile for Hopper on logits of the head's own type."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches


def launch_all() -> None:
    """What a step with constrained rows launches after its graph."""
    from xllm.hardware.kernels.triton.choose import choose_tokens
    from xllm.hardware.kernels.triton.mask import mask_logits

    rows, vocab_size = 64, 151_936
    inverse, keys = torch.ones(rows), torch.zeros(2, rows, dtype=torch.int32)
    top_k, top_p = torch.full((rows,), 20), torch.full((rows,), 0.9)
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.empty(rows, vocab_size, dtype=dtype)
        masks = torch.zeros(rows, vocab_size // 32, dtype=torch.int32)
        mask_logits(logits, torch.arange(rows), masks)
        choose_tokens(logits)
        choose_tokens(logits, inverse, top_k=top_k, top_p=top_p, keys=keys)


def test_they_compile() -> None:
    assert compiled_launches(__file__)[0] == 10
