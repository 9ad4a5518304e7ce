"""Mixture of experts: routing, and the experts' gated MLPs one expert at a time."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from xllm.hardware.kernels.reference.activation import act_and_mul


@dataclasses.dataclass(frozen=True, slots=True)
class PackedExperts:
    """Stacked weights: gate_up (E, 2I, H) and down (E, H, I)."""

    gate_up: Tensor
    down: Tensor


def route(x: Tensor, weight: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """See ``ops.route``."""
    probabilities = F.linear(x, weight).float().softmax(dim=-1)
    weights, experts = probabilities.topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts.int()


def pack_experts(gate_up: Tensor, down: Tensor) -> PackedExperts:
    """See ``ops.pack_experts``."""
    return PackedExperts(gate_up, down)


def apply_experts(
    x: Tensor, packed: PackedExperts, weights: Tensor, experts: Tensor, activation: str
) -> Tensor:
    """See ``ops.apply_experts``."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in experts.unique().tolist():
        tokens, choices = torch.where(experts == expert)
        hidden = act_and_mul(F.linear(x[tokens], packed.gate_up[expert]), activation)
        y = F.linear(hidden, packed.down[expert]).float()
        out.index_add_(0, tokens, y * weights[tokens, choices, None])
    return out.to(x.dtype)
