"""The gated feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.layers.linear import GateUpLinear, Linear
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.quantization.base import QuantMethod


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))``, (T, H) -> (T, H)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up_proj = GateUpLinear(
            hidden_size, intermediate_size, bias=bias, method=method, dtype=dtype
        )
        self.down_proj = Linear(
            intermediate_size, hidden_size, bias=bias, method=method, dtype=dtype
        )

    @property
    def reader(self) -> Linear:
        """The one layer that reads the block's input."""
        return self.gate_up_proj

    def forward(self, x: Tokens) -> Tensor:
        out: Tensor = self.down_proj(self._gated(x))
        return out

    def add_norm(self, x: Tokens, residual: Tensor, norm: RMSNorm) -> tuple[Tokens, Tensor]:
        """``norm.add(self(x), residual)``."""
        return self.down_proj.add_norm(self._gated(x), residual, norm)

    def _gated(self, x: Tokens) -> Tokens:
        return self.gate_up_proj.gated(x, self.activation, self.down_proj)
