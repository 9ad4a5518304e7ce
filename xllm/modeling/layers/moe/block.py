"""The sparse feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.moe.experts import Experts, Router


class SparseMLP(nn.Module):
    """Each token through its own few experts, (T, H) -> (T, H)."""

    def __init__(
        self, hidden_size: int, config: ExpertsConfig, activation: str, *, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.gate = Router(hidden_size, config, dtype=dtype)
        self.experts = Experts(hidden_size, config, activation, dtype=dtype)

    @property
    def reader(self) -> None:
        """The block's input is read by the router and the experts."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.gate(x)
        out: Tensor = self.experts(x, weights, experts)
        return out
