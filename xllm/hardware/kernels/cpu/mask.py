"""Banning tokens by bit masks on the CPU."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import entry

_mask_logits = entry("xllm_mask_logits")
# logits, rows, masks, count, vocab, words, stride
_pack = struct.Struct("=7q").pack


def mask_logits(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See ``ops.mask_logits``."""
    if logits.dtype != torch.float32:
        return reference.mask_logits(logits, rows, masks)
    assert logits.stride(1) == 1
    assert rows.dtype == torch.int64 and masks.dtype == torch.int32 and masks.is_contiguous()
    return _mask_logits(
        _pack(
            *(logits.data_ptr(), rows.data_ptr(), masks.data_ptr()),
            *(len(rows), logits.shape[1], masks.shape[1], logits.stride(0)),
        )
    )
