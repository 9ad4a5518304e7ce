"""Weight-only int8, one scale per output channel, quantized while loading from any checkpoint.

Symmetric: ``weight[n] ~= int8[n] * scale[n]``, ``scale[n] = max|weight[n]| / 127``. Activations
stay in the model's dtype. Embeddings are looked up, not multiplied, and stay in float; a head tied
to them is quantized from its own copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.quantization.base import LinearLayer

_CHUNK_VALUES = 1 << 18  # quantized at a time, so that intermediates stay in the cache


class Method:
    """Implements ``QuantMethod``."""

    takes_scaled = False

    def create_weights(self, layer: LinearLayer) -> None:
        layer.weight = torch.empty(layer.out_features, layer.in_features, dtype=torch.int8)
        layer.scale = torch.empty(layer.out_features, dtype=torch.float32)

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor) -> None:
        rows = slice(start, start + weight.shape[0])
        layer.weight[rows], layer.scale[rows] = quantize_rows(weight)

    def after_load(self, layer: LinearLayer) -> None:
        layer.packed = ops.pack_linear(layer.weight, layer.scale)
        del layer.weight, layer.scale

    def apply(self, layer: LinearLayer, x: Tokens) -> Tensor:
        return ops.linear(x, layer.packed, layer.bias)

    def for_head(self) -> Method:
        return self

    def check_experts(self) -> None:
        raise ValueError("--quantization int8 does not support models with experts")


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` (N, K) of any float dtype -> int8 (N, K) and float32 scales (N,).

    A row of zeros gets scale 1, so that no scale is zero or NaN.
    """
    num_rows, width = weight.shape
    quantized = torch.empty(num_rows, width, dtype=torch.int8, device=weight.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=weight.device)
    step = max(_CHUNK_VALUES // width, 1)
    for start in range(0, num_rows, step):
        rows = weight[start : start + step].float()
        scale = rows.abs().amax(dim=1) / 127.0
        scale.masked_fill_(scale == 0, 1.0)
        scales[start : start + step] = scale
        quantized[start : start + step] = (rows / scale[:, None]).round_()
    return quantized, scales
