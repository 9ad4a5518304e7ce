"""8-bit floats (e4m3) with a scale per block of 128 outputs and 128 inputs.

``weight[n, k] ~= fp8[n, k] * scale[n // 128, k // 128]``, quantized while loading from any
checkpoint, or kept as DeepSeek's and Qwen's FP8 checkpoints store it (``fp8_stored``). Activations
are quantized per token and 128 columns as they come. The head stays in float.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from xllm.modeling.quantization import fp8
from xllm.modeling.quantization.base import LinearLayer
from xllm.modeling.quantization.fp8 import CHUNK_VALUES, MAX_VALUE

BLOCK = 128


class Method(fp8.Method):
    """Implements ``QuantMethod``."""

    name = "fp8_block"

    def create_weights(self, layer: LinearLayer) -> None:
        blocks = -(-layer.out_features // BLOCK), -(-layer.in_features // BLOCK)
        layer.weight = torch.empty(layer.out_features, layer.in_features, dtype=torch.float8_e4m3fn)
        layer.scale = torch.empty(blocks, dtype=torch.float32)

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor) -> None:
        check_rows(layer, start)
        step = max(CHUNK_VALUES // weight.shape[1] // BLOCK, 1) * BLOCK
        for first in range(0, weight.shape[0], step):
            self.load_blocks(layer, start + first, *quantize_blocks(weight[first : first + step]))

    def load_blocks(self, layer: LinearLayer, start: int, values: Tensor, scale: Tensor) -> None:
        """Fill output rows ``start ..`` with quantized values (rows, K) and their scales."""
        check_rows(layer, start)
        layer.weight[start : start + values.shape[0]].copy_(values)
        layer.scale[start // BLOCK : start // BLOCK + scale.shape[0]].copy_(scale)


def check_rows(layer: LinearLayer, start: int) -> None:
    """Refuse a part of a merged projection that would share a block with the part before it.

    Raises:
        ValueError: ``start``, its first row, is within a block.
    """
    if start % BLOCK:
        parts = ", ".join(f"{name} {rows}" for name, rows in layer.shards or ())
        raise ValueError(
            f"8-bit weights with a scale per {BLOCK} x {BLOCK} block need merged projections whose "
            f"parts have multiples of {BLOCK} rows; these have: {parts}"
        )


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` (N, K) of any float dtype -> float8_e4m3fn (N, K) and float32 scales
    (ceil(N / 128), ceil(K / 128)). A block of zeros gets scale 1."""
    outputs, inputs = weight.shape
    padded = F.pad(weight.float(), (0, -inputs % BLOCK, 0, -outputs % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))  # (rows, 128, columns, 128)
    scale = blocks.abs().amax(dim=(1, 3)) / MAX_VALUE
    scale.masked_fill_(scale == 0, 1.0)
    values = (
        (blocks / scale[:, None, :, None]).clamp_(-MAX_VALUE, MAX_VALUE).to(torch.float8_e4m3fn)
    )
    return values.flatten(2).flatten(0, 1)[:outputs, :inputs], scale
