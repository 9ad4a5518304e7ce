"""8-bit floats as the checkpoint stores them: scales per output or per block, layer by layer.

Not chosen by name: the loader takes it for checkpoints of ``weights.scaled`` where the device
multiplies 8-bit floats. Elsewhere weights are dequantized while loading.
"""

from __future__ import annotations

from torch import Tensor

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.quantization import fp8, fp8_block, unquantized
from xllm.modeling.quantization.base import LinearLayer, QuantMethod, ScaledTensor


class Method:
    """Implements ``QuantMethod``: what comes first decides, and that method takes over."""

    takes_scaled = True

    def create_weights(self, layer: LinearLayer) -> None:
        """Nothing yet: the first rows say what to allocate."""

    def load_rows(self, layer: LinearLayer, start: int, weight: Tensor | ScaledTensor) -> None:
        storage = _storage(weight)
        if not hasattr(layer, "stored_as"):
            layer.stored_as = storage
            storage.create_weights(layer)
        if type(layer.stored_as) is not type(storage):
            parts = ", ".join(name for name, _ in layer.shards or ())
            raise ValueError(f"the parts of one projection must be stored alike: {parts}")
        if isinstance(weight, Tensor):
            storage.load_rows(layer, start, weight)
        elif isinstance(storage, fp8_block.Method):
            storage.load_blocks(layer, start, weight.values, weight.scale)
        else:
            rows = slice(start, start + weight.values.shape[0])
            layer.weight[rows].copy_(weight.values)
            layer.scale[rows].copy_(weight.scale)

    def after_load(self, layer: LinearLayer) -> None:
        layer.method = layer.stored_as
        layer.method.after_load(layer)

    def apply(self, layer: LinearLayer, x: Tokens) -> Tensor:
        raise AssertionError("the layer was not loaded")

    def for_head(self) -> QuantMethod:
        return unquantized.Method()

    def check_experts(self) -> None:
        """Nothing to refuse: experts are dequantized while loading."""


def _storage(weight: Tensor | ScaledTensor) -> QuantMethod:
    if isinstance(weight, Tensor):
        return unquantized.Method()
    return fp8_block.Method() if weight.by_block else fp8.Method()
