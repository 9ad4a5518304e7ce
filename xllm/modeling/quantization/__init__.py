"""How weight matrices are stored and multiplied, one file per format, found by name.

Owns the stored form of a linear layer's weight: created, filled row range by row range from a
checkpoint of any dtype, packed once, applied. Does not own checkpoint parsing.
"""

from xllm.modeling.quantization.base import QuantMethod
from xllm.modeling.quantization.registry import load_method

__all__ = ["QuantMethod", "load_method"]
