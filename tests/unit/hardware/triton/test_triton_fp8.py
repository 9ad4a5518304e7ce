"""Activations in 8 bits: the kernel that makes them quantizes them as a kernel apart would."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.reference.fp8 import dequantize_tokens
from xllm.hardware.kernels.reference.fp8 import quantize_tokens as reference_quantize
from xllm.hardware.kernels.tokens import QuantizedTokens
from xllm.hardware.kernels.triton import fp8, fp8_block
from xllm.hardware.kernels.triton.activation import act_and_mul
from xllm.hardware.kernels.triton.fp8 import quantize_tokens, scale_width
from xllm.hardware.kernels.triton.fp8_block import (
    BlockTile,
    linear_block,
    stream_block,
    tiled_block,
)
from xllm.hardware.kernels.triton.linear import linear, pack_linear
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm, rms_norm
from xllm.hardware.kernels.triton.packed import PackedLinear

FP8 = torch.float8_e4m3fn
TOKENS = [2, 5, 64]


def packed(outputs: int, inputs: int, device: torch.device) -> PackedLinear:
    weight = torch.randn(outputs, inputs, device=device).to(FP8)
    return pack_linear(weight, torch.rand(outputs, device=device) / inputs)


def assert_same(actual: object, expected: QuantizedTokens) -> None:
    assert isinstance(actual, QuantizedTokens)
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.values.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(actual.scale, expected.scale)


def assert_near(actual: object, expected: QuantizedTokens) -> None:
    """As another order of a norm's sum leaves it, which may round a value to its neighbour: a step
    of bfloat16 before quantizing, of 8 bits after. To the bit in the interpreter."""
    if expected.values.device.type == "cpu":
        assert_same(actual, expected)
        return
    assert isinstance(actual, QuantizedTokens)
    torch.testing.assert_close(actual.scale, expected.scale, rtol=2**-7, atol=0)
    values, others = actual.values.float(), expected.values.float()
    torch.testing.assert_close(values, others, rtol=0.13, atol=2e-3)
    assert (values == others).float().mean() > 0.99


def activations(tokens: int, width: int, device: torch.device) -> Tensor:
    """Tokens of different sizes, one of them zero."""
    sizes = torch.logspace(-3, 1, tokens, device=device)
    sizes[tokens // 2] = 0.0
    return (torch.randn(tokens, width, device=device) * sizes[:, None]).bfloat16()


@pytest.mark.parametrize("width", [64, 300, 1024])
@pytest.mark.parametrize("run", [128, 4096], ids=["columns", "tokens"])
def test_quantized_tokens_equal_the_reference(width: int, run: int, device) -> None:
    x = activations(7, width, device)
    run = min(run, width)
    actual, expected = quantize_tokens(x, run), reference_quantize(x, run)
    torch.testing.assert_close(actual.scale, expected.scale, rtol=1e-6, atol=0)
    near = torch.isclose(
        dequantize_tokens(actual, run), dequantize_tokens(expected, run), rtol=0.13, atol=1e-6
    )
    # The interpreter's conversion loses a carry now and then.
    assert near.float().mean() > (0.95 if device.type == "cpu" else 0.999)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("hidden", [48, 576])
def test_a_norm_quantizes_what_it_would_return(tokens: int, hidden: int, device) -> None:
    into = packed(32, hidden, device)
    x, weight = activations(tokens, hidden, device), torch.rand(hidden, device=device).bfloat16()
    plain = rms_norm(x, weight, 1e-5, 1.0)
    assert isinstance(plain, Tensor)
    assert_near(rms_norm(x, weight, 1e-5, 1.0, into), quantize_tokens(plain, hidden))

    residual = torch.randn(tokens, hidden, device=device).bfloat16()
    plain, summed = fused_add_rms_norm(x, residual.clone(), weight, 1e-5)
    assert isinstance(plain, Tensor)
    actual, same = fused_add_rms_norm(x, residual, weight, 1e-5, 0.0, into)
    assert_near(actual, quantize_tokens(plain, hidden))
    assert same is residual and torch.equal(residual, summed)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("half", [48, 1536])
def test_an_activation_quantizes_what_it_would_return(tokens: int, half: int, device) -> None:
    gate_up = activations(tokens, 2 * half, device)
    plain = act_and_mul(gate_up, "silu")
    assert isinstance(plain, Tensor)
    assert_same(
        act_and_mul(gate_up, "silu", packed(32, half, device)), quantize_tokens(plain, half)
    )


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_product_is_the_same_of_either(tokens: int, device) -> None:
    into = packed(32, 64, device)
    x, weight = activations(tokens, 64, device), torch.ones(64, device=device).bfloat16()
    apart = linear(rms_norm(x, weight, 1e-5), into)
    fused = linear(rms_norm(x, weight, 1e-5, into=into), into)
    tolerance = 0.0 if device.type == "cpu" else 0.02  # see assert_near
    assert (fused - apart).float().norm() <= tolerance * apart.float().norm()
    assert apart.dtype == torch.bfloat16


def test_only_products_in_8_bits_of_several_tokens_want_it(device) -> None:
    into = packed(32, 64, device)
    assert scale_width(into, 2, torch.bfloat16) == scale_width(into, 64, torch.float16) == 64
    assert scale_width(into, 1, torch.bfloat16) == 0
    assert scale_width(into, 2, torch.float32) == 0
    assert scale_width(None, 2, torch.bfloat16) == 0
    plain = pack_linear(torch.zeros(32, 64, device=device, dtype=torch.bfloat16))
    assert scale_width(plain, 2, torch.bfloat16) == 0
    if device.type != "cuda":  # no library for many tokens
        assert scale_width(into, 65, torch.bfloat16) == 0
    x = torch.randn(1, 64, device=device).bfloat16()
    assert isinstance(rms_norm(x, torch.ones(64, device=device).bfloat16(), 1e-5, 0, into), Tensor)


class TestBlocks:
    """Weights with a scale per 128 x 128 block."""

    SHAPES = [(256, 384), (200, 300), (64, 128), (130, 2176)]  # (N, K)

    def weight(self, outputs: int, inputs: int, device) -> tuple[Tensor, Tensor]:
        values = torch.randn(outputs, inputs, device=device).to(FP8)
        blocks = -(-outputs // 128), -(-inputs // 128)
        return values, 10 ** (2 * torch.rand(blocks, device=device) - 1) / inputs**0.5

    def expected(self, x: Tensor | QuantizedTokens, weight, scale, bias) -> Tensor:
        wide = x.double() if isinstance(x, Tensor) else dequantize_tokens(x, 128).double()
        return wide @ reference.dequantize_weight(weight, scale).double().T + bias.double()

    def assert_close(self, actual: Tensor, expected: Tensor) -> None:
        # The interpreter cuts bfloat16 off where a device rounds.
        assert (actual.double() - expected).norm() <= 8e-3 * expected.norm()
        torch.testing.assert_close(actual.double(), expected, rtol=2e-2, atol=2e-2)

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("shares", [1, 2, 3])
    @pytest.mark.parametrize("tokens", [2, 40])
    def test_few_tokens(self, shape, shares: int, tokens: int, device) -> None:
        outputs, inputs = shape
        x = quantize_tokens(activations(tokens, inputs, device), 128)
        weight, scale = self.weight(outputs, inputs, device)
        bias = torch.randn(outputs, device=device).bfloat16()
        actual = stream_block(x, weight, scale, bias, BlockTile(64, k_shares=shares))
        self.assert_close(actual, self.expected(x, weight, scale, bias))

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(
        ("tokens", "tile"), [(144, BlockTile(128, 64)), (65, BlockTile(64, 16))], ids=str
    )
    def test_many_tokens(self, shape, tile: BlockTile, tokens: int, device) -> None:
        outputs, inputs = shape
        x = quantize_tokens(activations(tokens, inputs, device), 128)
        weight, scale = self.weight(outputs, inputs, device)
        bias = torch.randn(outputs, device=device).bfloat16()
        actual = tiled_block(x, weight, scale, bias, tile)
        self.assert_close(actual, self.expected(x, weight, scale, bias))

    @pytest.mark.parametrize("tokens", [1, 2, 70])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_a_layer_chooses_among_them(self, tokens: int, dtype: torch.dtype, device) -> None:
        weight, scale = self.weight(256, 256, device)
        into, x = pack_linear(weight, scale), torch.randn(tokens, 256, device=device).to(dtype)
        width = 128 if tokens > 1 and dtype != torch.float32 else 0
        assert scale_width(into, tokens, dtype) == width
        actual = linear(x, into)
        assert actual.dtype == dtype
        read = quantize_tokens(x, width) if width else x
        self.assert_close(
            actual, self.expected(read, weight, scale, torch.zeros(256, device=device))
        )
        if width:
            assert torch.equal(linear_block(read, weight, scale, None), actual)

    @pytest.mark.parametrize("tokens", [70, 80])
    def test_the_library_gets_the_layouts_that_it_asks_for(self, tokens, device, monkeypatch):
        """PyTorch's conditions on operands and scales, written down; the device tests run it."""

        def scaled_mm(a, b, scale_a, recipe_a, scale_b, recipe_b, output_dtype):
            (rows, inputs), outputs = a.shape, b.shape[1]
            assert rows == 80 and a.stride() == (inputs, 1) and b.stride() == (1, inputs)
            assert scale_a.shape == (rows, inputs // 128) and scale_a.stride() == (1, rows)
            assert scale_b.shape == (inputs // 128, outputs // 128)
            assert scale_b.stride() == (1, inputs // 128) and inputs // 128 % 4 == 0
            assert recipe_a == F.ScalingType.BlockWise1x128
            assert recipe_b == F.ScalingType.BlockWise128x128
            wide = a.float() * scale_a.repeat_interleave(128, dim=1)
            return (wide @ reference.dequantize_weight(b.T, scale_b.T).T).to(output_dtype)

        weight, scale = self.weight(256, 1024, device)
        x = quantize_tokens(activations(tokens, 1024, device), 128)
        monkeypatch.setattr(F, "scaled_mm", scaled_mm)
        monkeypatch.setattr(fp8, "library_takes_blocks", lambda device: True)
        monkeypatch.setattr(fp8_block, "_MANY_RESULTS", tokens * 256)
        monkeypatch.setattr(fp8_block, "tiled_block", None)
        actual = linear_block(x, weight, scale, None)
        assert actual.shape == (tokens, 256)
        self.assert_close(actual, self.expected(x, weight, scale, torch.zeros(256, device=device)))

    def test_odd_shapes_are_not_the_librarys(self, device, monkeypatch) -> None:
        monkeypatch.setattr(fp8, "library_takes_blocks", lambda device: True)
        x = quantize_tokens(torch.randn(70, 1024, device=device).bfloat16(), 128)
        weight = torch.zeros(256, 1024, device=device).to(FP8)
        assert fp8.fits_library_by_block(x, weight)
        assert not fp8.fits_library_by_block(x, weight[:200])
        unpadded = reference_quantize(torch.zeros(70, 1024, device=device).bfloat16(), 128)
        assert not fp8.fits_library_by_block(unpadded, weight)
        narrow = quantize_tokens(torch.randn(70, 640, device=device).bfloat16(), 128)
        assert not fp8.fits_library_by_block(narrow, weight[:, :640])

    @pytest.mark.parametrize("tokens", [2, 70])
    def test_what_makes_activations_quantizes_them(self, tokens: int, device) -> None:
        into = pack_linear(*self.weight(128, 1280, device))
        weight = torch.rand(1280, device=device).bfloat16()
        x, gate_up = activations(tokens, 1280, device), activations(tokens, 2560, device)
        norm, plain = rms_norm(x, weight, 1e-5, into=into), rms_norm(x, weight, 1e-5)
        assert_near(norm, quantize_tokens(plain, 128))
        gated = act_and_mul(gate_up, "gelu", into)
        assert_same(gated, quantize_tokens(act_and_mul(gate_up, "gelu"), 128))
