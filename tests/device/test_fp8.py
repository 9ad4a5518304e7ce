"""What the interpreter cannot show of 8-bit floats: conversions that round, and the library."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels import reference

FP8 = torch.float8_e4m3fn


def test_keys_and_values_are_rounded_and_saturate() -> None:
    from xllm.hardware.kernels.triton.rope import qk_norm_rope_kv_write

    qkv = torch.randn(4, 8 * 16, device="cuda", dtype=torch.bfloat16)
    qkv[0, -16:] = 1e4
    qkv[2, -32] = float("nan")
    positions = torch.tensor([5, 0, 9, 3], device="cuda")
    slots = torch.tensor([7, -1, 25, 8], device="cuda")
    angles = torch.randn(10, 8, device="cuda")
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    results = []
    for implementation in (qk_norm_rope_kv_write, reference.qk_norm_rope_kv_write):
        cache = torch.zeros(4, 2, 2, 8, 16, device="cuda", dtype=FP8)
        views = cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)
        implementation(qkv, positions, cos_sin, *views, slots, 4, 2, 16, None, None, 1e-6)
        results.append(cache.float())
    assert results[1].nan_to_num().abs().max() == 448.0 and results[1].isnan().sum() == 1
    # A product rounded once more in between may land on the next of 8 values per octave.
    torch.testing.assert_close(results[0], results[1], rtol=0.13, atol=1e-2, equal_nan=True)
    assert ((results[0] == results[1]) | results[1].isnan()).float().mean() > 0.95


@pytest.mark.parametrize("tokens", [1, 2, 17, 130, 300])
def test_products_are_as_near_as_their_rounding(tokens: int) -> None:
    from xllm.hardware.kernels.triton.linear import linear, pack_linear
    from xllm.modeling.quantization.fp8 import quantize_rows

    x = torch.randn(tokens, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(384, 512, device="cuda")
    bias = torch.randn(384, device="cuda", dtype=torch.bfloat16)
    values, scale = quantize_rows(weight)
    expected = x.float() @ (values.float() * scale[:, None]).T + bias.float()
    actual = linear(x, pack_linear(values, scale), bias).float()
    assert (actual - expected).norm() < 0.04 * expected.norm()


@pytest.mark.parametrize("tokens", [2, 64, 300])
@pytest.mark.parametrize("width", [512, 3072])
def test_what_makes_activations_quantizes_them(tokens: int, width: int) -> None:
    """To the bit where nothing is summed. A norm that quantizes sums its squares in another order,
    so that a value here and there is rounded to its neighbour, before or after quantizing."""
    from xllm.hardware.kernels.triton.activation import act_and_mul
    from xllm.hardware.kernels.triton.linear import linear, pack_linear
    from xllm.hardware.kernels.triton.norm import fused_add_rms_norm, rms_norm
    from xllm.modeling.quantization.fp8 import quantize_rows

    into = pack_linear(*quantize_rows(torch.randn(256, width, device="cuda")))
    x = torch.randn(tokens, width, device="cuda").bfloat16()
    weight = torch.rand(width, device="cuda").bfloat16()
    gate_up = torch.randn(tokens, 2 * width, device="cuda").bfloat16()
    apart = linear(act_and_mul(gate_up, "silu"), into)
    assert torch.equal(linear(act_and_mul(gate_up, "silu", into), into), apart)
    for make in (
        lambda into: rms_norm(x, weight, 1e-6, into=into),
        lambda into: fused_add_rms_norm(x, x.clone(), weight, 1e-6, into=into)[0],
    ):
        fused, apart = linear(make(into), into).float(), linear(make(None), into).float()
        assert (fused - apart).norm() <= 0.02 * apart.norm()
        assert (fused == apart).all(dim=1).float().mean() >= 0.5


@pytest.mark.parametrize("tokens", [1, 2, 17, 64, 130, 300, 1000])
@pytest.mark.parametrize("shape", [(384, 512), (200, 300), (4096, 2176)])
def test_products_of_blocks_equal_what_they_stand_for(tokens: int, shape: tuple[int, int]) -> None:
    from xllm.hardware.kernels.reference.fp8 import dequantize_tokens
    from xllm.hardware.kernels.triton.fp8 import quantize_tokens
    from xllm.hardware.kernels.triton.linear import linear, pack_linear
    from xllm.modeling.quantization.fp8_block import quantize_blocks

    outputs, inputs = shape
    values, scale = quantize_blocks(torch.randn(outputs, inputs, device="cuda"))
    x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(outputs, device="cuda", dtype=torch.bfloat16)
    wide = x.double()
    if tokens > 1:
        wide = dequantize_tokens(quantize_tokens(x, 128), 128).double()
    expected = wide @ reference.dequantize_weight(values, scale).double().T + bias
    actual = linear(x, pack_linear(values, scale), bias).double()
    assert (actual - expected).norm() < 4e-3 * expected.norm()
    plain = x.double() @ reference.dequantize_weight(values, scale).double().T + bias
    assert (actual - plain).norm() < 0.04 * plain.norm()


@pytest.mark.parametrize("tokens", [256, 300, 1001])
def test_the_library_multiplies_blocks(tokens: int) -> None:
    from xllm.hardware.kernels.reference.fp8 import dequantize_tokens
    from xllm.hardware.kernels.triton import fp8
    from xllm.modeling.quantization.fp8_block import quantize_blocks

    values, scale = quantize_blocks(torch.randn(4224, 2048, device="cuda"))
    if not fp8.library_takes_blocks(values.device):
        pytest.skip("PyTorch and cuBLAS have no product with block scales for this GPU")
    scale *= torch.rand_like(scale) + 0.5
    x = torch.randn(tokens, 2048, device="cuda", dtype=torch.bfloat16)
    quantized = fp8.quantize_tokens(x, 128)
    assert fp8.fits_library_by_block(quantized, values)
    wide = dequantize_tokens(quantized, 128).double()
    expected = wide @ reference.dequantize_weight(values, scale).double().T
    actual = fp8.linear_fp8_block(quantized, values, scale).double()
    assert actual.shape == expected.shape
    assert (actual - expected).norm() < 4e-3 * expected.norm()


@pytest.mark.parametrize("width", [128, 384])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_value_breaks_its_token_and_no_other(width: int, broken: float) -> None:
    from xllm.hardware.kernels.reference.fp8 import dequantize_tokens
    from xllm.hardware.kernels.triton.fp8 import quantize_tokens

    x = torch.randn(3, 384, device="cuda", dtype=torch.bfloat16)
    x[1, 200] = broken
    restored = dequantize_tokens(quantize_tokens(x, width), width)
    assert restored.isnan().any(dim=1).tolist() == [False, True, False]
