"""Choosing one token per row on the CPU."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from xllm.hardware.kernels.cpu.call import entry, pointer

_choose_tokens = entry("xllm_choose_tokens")
# logits, inverse_temperature, log_min_p, top_k, top_p, keys, tokens, best, rows, vocab, strides of
# logits and keys
_pack = struct.Struct("=12q").pack


def choose_tokens(
    logits: Tensor,
    inverse_temperature: Tensor | None = None,
    log_min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.choose_tokens``."""
    logits = logits.float()
    assert logits.stride(1) == 1
    rows, vocab_size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64)
    best = torch.empty(rows)
    filters = map(pointer, (inverse_temperature, log_min_p, top_k, top_p, keys))
    _choose_tokens(
        _pack(
            *(logits.data_ptr(), *filters, tokens.data_ptr(), best.data_ptr()),
            *(rows, vocab_size, logits.stride(0), 0 if keys is None else keys.stride(0)),
        )
    )
    return tokens, best
