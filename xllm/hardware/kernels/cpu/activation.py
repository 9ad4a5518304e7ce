"""Gated activations on the CPU."""

from __future__ import annotations

import struct
from typing import Any

from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.call import DTYPES, entry

_act_and_mul = entry("xllm_act_and_mul")
KINDS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
_pack = struct.Struct("=6q").pack  # gate_up, out, tokens, width, kind, dtype


def act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor:
    """See ``ops.act_and_mul``."""
    dtype, kind = DTYPES.get(gate_up.dtype), KINDS.get(activation)
    if dtype is None or kind is None:
        return reference.act_and_mul(gate_up, activation)
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, width))
    _act_and_mul(_pack(gate_up.data_ptr(), out.data_ptr(), tokens, width, kind, dtype))
    return out
