"""Mixture of experts: routing, and the experts' gated MLPs one expert at a time."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from xllm.hardware.kernels.reference.activation import act_and_mul


@dataclasses.dataclass(frozen=True, slots=True)
class PackedExperts:
    """Stacked weights: gate_up (E, 2I, H) and down (E, H, I), and their biases or None."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def route(
    x: Tensor, weight: Tensor, top_k: int, normalize: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ``ops.route``."""
    probabilities = F.linear(x, weight, bias).float().softmax(dim=-1)
    weights, experts = probabilities.topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts.int()


def pack_experts(
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> PackedExperts:
    """See ``ops.pack_experts``."""
    assert (gate_up_bias is None) == (down_bias is None)
    return PackedExperts(gate_up, down, gate_up_bias, down_bias)


def apply_experts(
    x: Tensor, packed: PackedExperts, weights: Tensor, experts: Tensor, activation: str
) -> Tensor:
    """See ``ops.apply_experts``."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    up_biases, down_biases = packed.gate_up_bias, packed.down_bias
    for expert in experts.unique().tolist():
        tokens, choices = torch.where(experts == expert)
        up_bias = up_biases[expert] if up_biases is not None else None
        down_bias = down_biases[expert] if down_biases is not None else None
        hidden = act_and_mul(F.linear(x[tokens], packed.gate_up[expert], up_bias), activation)
        y = F.linear(hidden, packed.down[expert], down_bias).float()
        out.index_add_(0, tokens, y * weights[tokens, choices, None])
    return out.to(x.dtype)
