"""The two parts of a sparse block that hold weights. Shapes: T tokens, E experts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.layers.target import Target


class Router(nn.Module):
    """Scores every expert for every token and chooses. Never quantized: it is small and decides."""

    def __init__(self, hidden_size: int, config: ExpertsConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_token
        self.normalize = config.normalize
        self.weight = nn.Parameter(torch.empty(config.num_experts, hidden_size, dtype=dtype), False)
        self.bias: nn.Parameter | None = None
        if config.biased:
            self.bias = nn.Parameter(torch.empty(config.num_experts, dtype=dtype), False)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield f"{prefix}.weight", Target(tuple(self.weight.shape), self._load)
        if self.bias is not None:
            yield f"{prefix}.bias", Target(tuple(self.bias.shape), self._load_bias)

    def after_load(self) -> None:
        pass

    def forward(self, x: Tokens) -> tuple[Tensor, Tensor]:
        """x (T, H) -> weights and experts, both (T, top_k)."""
        return ops.route(x, self.weight, self.top_k, self.normalize, self.bias)

    def _load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)

    def _load_bias(self, bias: Tensor) -> None:
        assert self.bias is not None
        self.bias.copy_(bias)


class Experts(nn.Module):
    """E gated MLPs as two stacked matrices; checkpoints name each expert's matrices apart."""

    gate_up: Tensor  # (E, 2I, H) and (E, H, I) while loading, then packed
    down: Tensor
    packed: Any

    def __init__(
        self, hidden_size: int, config: ExpertsConfig, activation: str, *, dtype: torch.dtype
    ) -> None:
        super().__init__()
        count, inner = config.num_experts, config.intermediate_size
        self.activation = activation
        self.hidden_size = hidden_size
        self.num_experts = count
        self.intermediate_size = inner
        self.gate_up = torch.empty(count, 2 * inner, hidden_size, dtype=dtype)
        self.down = torch.empty(count, hidden_size, inner, dtype=dtype)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        hidden_size, inner = self.hidden_size, self.intermediate_size
        for expert in range(self.num_experts):
            for start, name in ((0, "gate_proj"), (inner, "up_proj")):
                load = functools.partial(self._load_up, expert, start)
                yield f"{prefix}.{expert}.{name}.weight", Target((inner, hidden_size), load)
            load = functools.partial(self._load_down, expert)
            yield f"{prefix}.{expert}.down_proj.weight", Target((hidden_size, inner), load)

    def after_load(self) -> None:
        self.packed = ops.pack_experts(self.gate_up, self.down)
        del self.gate_up, self.down

    @property
    def into(self) -> Any:
        """``into`` of the op that makes the input of these experts and their router."""
        return self.packed

    def forward(self, x: Tokens, weights: Tensor, experts: Tensor) -> Tensor:
        """x (T, H), weights and experts (T, top_k) -> (T, H)."""
        return ops.apply_experts(x, self.packed, weights, experts, self.activation)

    def add_norm(
        self, x: Tokens, weights: Tensor, experts: Tensor, residual: Tensor, norm: RMSNorm
    ) -> tuple[Tokens, Tensor]:
        """``norm.add(self(x, weights, experts), residual)``, for a platform to make one of."""
        return ops.experts_add_rms_norm(
            x,
            self.packed,
            weights,
            experts,
            self.activation,
            residual,
            norm.weight,
            norm.eps,
            norm.offset,
            norm.into,
        )

    def _load_up(self, expert: int, start: int, weight: Tensor) -> None:
        self.gate_up[expert, start : start + self.intermediate_size].copy_(weight)

    def _load_down(self, expert: int, weight: Tensor) -> None:
        self.down[expert].copy_(weight)


class BiasedExperts(Experts):
    """Experts with biases, each stored as in gpt-oss: weights with inputs first, gate and up in one
    matrix whose columns alternate."""

    gate_up_bias: Tensor  # (E, 2I) and (E, H) while loading, then packed
    down_bias: Tensor

    def __init__(
        self, hidden_size: int, config: ExpertsConfig, activation: str, *, dtype: torch.dtype
    ) -> None:
        super().__init__(hidden_size, config, activation, dtype=dtype)
        count, inner = config.num_experts, config.intermediate_size
        self.gate_up_bias = torch.empty(count, 2 * inner, dtype=dtype)
        self.down_bias = torch.empty(count, hidden_size, dtype=dtype)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        hidden_size, inner = self.hidden_size, self.intermediate_size
        slots = {
            "gate_up_proj": ((hidden_size, 2 * inner), self._load_gate_up),
            "gate_up_proj_bias": ((2 * inner,), self._load_gate_up_bias),
            "down_proj": ((inner, hidden_size), self._load_inputs_first),
            "down_proj_bias": ((hidden_size,), self._load_down_bias),
        }
        for expert in range(self.num_experts):
            for name, (shape, load) in slots.items():
                yield f"{prefix}.{expert}.{name}", Target(shape, functools.partial(load, expert))

    def after_load(self) -> None:
        biases = self.gate_up_bias, self.down_bias
        self.packed = ops.pack_experts(self.gate_up, self.down, *biases)
        del self.gate_up, self.down, self.gate_up_bias, self.down_bias

    def _load_gate_up(self, expert: int, weight: Tensor) -> None:
        weight = weight.to(self.gate_up.device)  # before columns are picked, which is slow on CPUs
        self._load_up(expert, 0, weight[:, 0::2].T)
        self._load_up(expert, self.intermediate_size, weight[:, 1::2].T)

    def _load_gate_up_bias(self, expert: int, bias: Tensor) -> None:
        self.gate_up_bias[expert].copy_(torch.cat((bias[0::2], bias[1::2])))

    def _load_inputs_first(self, expert: int, weight: Tensor) -> None:
        self._load_down(expert, weight.T)

    def _load_down_bias(self, expert: int, bias: Tensor) -> None:
        self.down_bias[expert].copy_(bias)
