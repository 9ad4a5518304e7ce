"""Gated activation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Of clamped_swiglu.
CLAMP, SLOPE = 7.0, 1.702


def act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor:
    """See ``ops.act_and_mul``."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (gate * torch.sigmoid(SLOPE * gate) * (up + 1)).to(gate_up.dtype)
    if activation == "silu":
        gate = F.silu(gate)
    elif activation in ("gelu", "gelu_tanh"):
        gate = F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    else:
        raise ValueError(
            f"activation must be silu, gelu, gelu_tanh or clamped_swiglu, got {activation!r}"
        )
    return (gate * up).to(gate_up.dtype)
