"""Weights in the model's own dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.quantization.base import LinearLayer


class Method:
    """Float weights, packed by the platform. Implements ``QuantMethod``."""

    takes_scaled = False

    def create_weights(self, layer: LinearLayer) -> None:
        layer.weight = torch.empty(layer.out_features, layer.in_features, dtype=layer.dtype)

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor) -> None:
        layer.weight[start : start + weight.shape[0]].copy_(weight)

    def after_load(self, layer: LinearLayer) -> None:
        layer.packed = ops.pack_linear(layer.weight)
        del layer.weight

    def apply(self, layer: LinearLayer, x: Tokens) -> Tensor:
        return ops.linear(x, layer.packed, layer.bias)

    def for_head(self) -> Method:
        return self

    def check_experts(self) -> None:
        """Nothing to refuse."""
