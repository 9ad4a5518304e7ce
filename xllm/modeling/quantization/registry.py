"""Finds quantization methods by file name."""

from __future__ import annotations

from xllm.core.utils.registry import Registry
from xllm.modeling.quantization.base import QuantMethod

methods = Registry("xllm.modeling.quantization", "quantization", exclude=("base", "registry"))


def load_method(name: str | None) -> QuantMethod:
    """An instance of the method in ``quantization/<name>.py``; None means unquantized.

    Raises:
        ValueError: no such method; the message lists those that exist.
    """
    method: QuantMethod = methods.load(name or "unquantized").Method()
    return method
