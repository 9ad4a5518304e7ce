"""Gated activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F


def act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor:
    """See ``ops.act_and_mul``."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "silu":
        gate = F.silu(gate)
    elif activation in ("gelu", "gelu_tanh"):
        gate = F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    else:
        raise ValueError(f"activation must be silu, gelu or gelu_tanh, got {activation!r}")
    return (gate * up).to(gate_up.dtype)
