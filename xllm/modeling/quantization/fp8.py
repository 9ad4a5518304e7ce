"""8-bit floats (e4m3): weights per output channel, quantized while loading from any checkpoint.

``weight[n] ~= fp8[n] * scale[n]``, ``scale[n] = max|weight[n]| / 448``. Products of many tokens
quantize the activations too, per token as they come; products of few are bound by the weights and
keep the activations as they are. The head stays in float: it decides, and is a small share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.quantization import unquantized
from xllm.modeling.quantization.base import LinearLayer, QuantMethod

MAX_VALUE = 448.0
CHUNK_VALUES = 1 << 24  # quantized at a time, which bounds the float32 intermediates


class Method:
    """Implements ``QuantMethod``."""

    name = "fp8"  # of --quantization
    takes_scaled = False

    def create_weights(self, layer: LinearLayer) -> None:
        shape = layer.out_features, layer.in_features
        layer.weight = torch.empty(shape, dtype=torch.float8_e4m3fn)
        layer.scale = torch.empty(layer.out_features, dtype=torch.float32)

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor) -> None:
        step = max(CHUNK_VALUES // weight.shape[1], 1)
        for first in range(0, weight.shape[0], step):
            part = weight[first : first + step]
            rows = slice(start + first, start + first + part.shape[0])
            layer.weight[rows], layer.scale[rows] = quantize_rows(part)

    def after_load(self, layer: LinearLayer) -> None:
        layer.packed = ops.pack_linear(layer.weight, layer.scale)
        del layer.weight, layer.scale

    def apply(self, layer: LinearLayer, x: Tokens) -> Tensor:
        return ops.linear(x, layer.packed, layer.bias)

    def for_head(self) -> QuantMethod:
        return unquantized.Method()

    def check_experts(self) -> None:
        raise ValueError(f"--quantization {self.name} does not support models with experts")


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` (N, K) of any float dtype -> float8_e4m3fn (N, K) and float32 scales (N,).

    A row of zeros gets scale 1, so that no scale is zero or NaN.
    """
    rows = weight.float()
    scale = rows.abs().amax(dim=1) / MAX_VALUE
    scale.masked_fill_(scale == 0, 1.0)
    return (rows / scale[:, None]).clamp_(-MAX_VALUE, MAX_VALUE).to(torch.float8_e4m3fn), scale
