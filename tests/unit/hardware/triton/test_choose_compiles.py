"""Masks and choices compile for Hopper on logits of the head's own type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch


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
        choose_tokens(logits, inverse, keys=keys)
        choose_tokens(logits, inverse, top_k=top_k, top_p=top_p, keys=keys)


def test_they_compile() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.fakes.hopper", __file__]
    root = Path(__file__).parents[4]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("8 launches compiled")
