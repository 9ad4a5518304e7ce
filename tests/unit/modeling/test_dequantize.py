"""Every GGML type gives the same float32 bits as the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from xllm.modeling.weights.dequantize import block_format

_KNOWN = [
    kind
    for kind in gguf.GGMLQuantizationType
    if kind in gguf.quants._type_traits or kind.name in ("F32", "F16")
]


@pytest.mark.parametrize("kind", _KNOWN, ids=lambda kind: kind.name)
def test_blocks_equal_the_package(kind):
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    fmt = block_format(int(kind))
    assert (fmt.num_values, fmt.num_bytes) == (num_values, num_bytes)
    # Bytes below 0x7c: no float16 scale is infinite or NaN.
    blocks = np.random.default_rng(0).integers(0, 0x7C, (37, num_bytes), dtype=np.uint8)
    values = fmt.expand(torch.from_numpy(blocks.copy())).numpy().reshape(37, num_values)
    with np.errstate(over="ignore"):
        expected = dequantize(blocks, kind).reshape(37, num_values)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_signs_and_high_bits_survive(kind):
    """The random bytes above never set the top bit: quantized weights do."""
    weights = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    number = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(weights, number)
    fmt = block_format(int(number))
    values = fmt.expand(torch.from_numpy(packed).view(-1, fmt.num_bytes)).reshape(4, 64)
    np.testing.assert_array_equal(values.numpy(), dequantize(packed, number))
    assert np.abs(values.numpy() - weights).max() < 0.5


@pytest.mark.parametrize("type_id", [12, 13, 14])
def test_k_formats_use_all_bits(type_id):
    fmt = block_format(type_id)
    blocks = np.random.default_rng(2).integers(0, 256, (9, fmt.num_bytes), dtype=np.uint8)
    halves = [208] if type_id == 14 else [0, 2]
    for start in halves:
        blocks[:, start : start + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    values = fmt.expand(torch.from_numpy(blocks.copy())).numpy()
    expected = dequantize(blocks, gguf.GGMLQuantizationType(type_id)).reshape(values.shape)
    np.testing.assert_array_equal(values, expected)


def test_unknown_type_is_named():
    with pytest.raises(ValueError, match="GGML type 999 is unknown"):
        block_format(999)
