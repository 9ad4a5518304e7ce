"""Greedy and Gumbel-max sampling with token feedback on the CPU."""

from __future__ import annotations

import struct

from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import DTYPES, entry

_sample_tokens = entry("xllm_sample_tokens")
# logits, inverse_temperature, keys, tokens, best, table, index, rows, vocab, strides of logits and
# keys, dtype
_pack = struct.Struct("=12q").pack


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    keys: Tensor,
    tokens: Tensor,
    best_logits: Tensor,
    token_table: Tensor,
    write_index: Tensor,
) -> None:
    """See ``ops.sample_tokens``."""
    dtype = DTYPES.get(logits.dtype)
    if dtype is None:
        return reference.sample_tokens(
            logits, inverse_temperature, keys, tokens, best_logits, token_table, write_index
        )
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and keys.stride(1) == 1
    return _sample_tokens(
        _pack(
            *(logits.data_ptr(), inverse_temperature.data_ptr(), keys.data_ptr()),
            *(tokens.data_ptr(), best_logits.data_ptr(), token_table.data_ptr()),
            *(write_index.data_ptr(), rows, vocab_size, logits.stride(0), keys.stride(0), dtype),
        )
    )
