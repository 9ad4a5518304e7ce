"""Banning tokens by bit masks. Grid: (vocabulary share, constrained row)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def mask_logits(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See ``ops.mask_logits``."""
    assert logits.stride(1) == 1
    if not len(rows):
        return
    vocab_size = logits.shape[1]
    _mask_kernel[(triton.cdiv(vocab_size, _BLOCK), len(rows))](
        logits, rows, masks, vocab_size, logits.stride(0), masks.stride(0), BLOCK=_BLOCK
    )


@triton.jit
def _mask_kernel(logits, rows, masks, vocab_size, logits_stride, masks_stride, BLOCK: tl.constexpr):
    entry = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab_size
    words = tl.load(masks + entry * masks_stride + columns // 32, mask=inside, other=-1)
    banned = ((words >> (columns % 32)) & 1) == 0
    row = tl.load(rows + entry).to(tl.int64)
    banned_logit = tl.full((BLOCK,), float("-inf"), tl.float32)
    tl.store(logits + row * logits_stride + columns, banned_logit, mask=inside & banned)
