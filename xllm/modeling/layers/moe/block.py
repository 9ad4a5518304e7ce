"""The sparse feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.mlp import GatedMLP
from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.moe.experts import BiasedExperts, Experts, Router
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.quantization.base import QuantMethod


class SparseMLP(nn.Module):
    """Each token through its own few experts, (T, H) -> (T, H).

    With a shared expert, every token goes through that one as well, times a sigmoid of its own.
    """

    def __init__(
        self,
        hidden_size: int,
        config: ExpertsConfig,
        activation: str,
        *,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.gate = Router(hidden_size, config, dtype=dtype)
        experts = BiasedExperts if config.biased else Experts
        self.experts = experts(hidden_size, config, activation, dtype=dtype)
        self.shared_expert: GatedMLP | None = None
        if width := config.shared_intermediate_size:
            self.shared_expert = GatedMLP(
                hidden_size, width, activation, bias=False, method=method, dtype=dtype
            )
            self.shared_expert_gate = Linear(hidden_size, 1, method=method, dtype=dtype)

    @property
    def reader(self) -> Experts | None:
        """The experts, unless others than they and their router read the block's input."""
        return self.experts if self.shared_expert is None else None

    def add_norm(self, x: Tokens, residual: Tensor, norm: RMSNorm) -> tuple[Tokens, Tensor]:
        """``norm.add(self(x), residual)``."""
        if self.shared_expert is not None:
            return norm.add(self(x), residual)
        weights, experts = self.gate(x)
        return self.experts.add_norm(x, weights, experts, residual, norm)

    def forward(self, x: Tokens) -> Tensor:
        weights, experts = self.gate(x)
        out: Tensor = self.experts(x, weights, experts)
        if self.shared_expert is None:
            return out
        share = self.shared_expert_gate(x).sigmoid()
        return out.addcmul(share, self.shared_expert(x))
