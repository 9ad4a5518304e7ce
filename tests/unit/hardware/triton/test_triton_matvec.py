"""Products of one token in Triton against wide products of the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xllm.hardware.kernels.reference.linear import dequantize_weight
from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.hardware.kernels.triton.activation import act_and_mul
from xllm.hardware.kernels.triton.linear import (
    gated_linear,
    linear,
    linear_add_rms_norm,
    pack_linear,
)
from xllm.hardware.kernels.triton.matvec import MatvecTile, Norm, matvec, matvec_add_norm
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm

FP8 = torch.float8_e4m3fn
# Whole rows, parts of rows, rows that end within a tile.
TILES = [MatvecTile(2, 512, 2), MatvecTile(8, 64), MatvecTile(4, 128, num_stages=3)]
SHAPES = [(18, 360), (12, 512), (14, 100)]  # (N, K); the last is not in whole words
FORMATS = ["plain", "int8", "fp8", "block"]


def weights(kind: str, outputs: int, inputs: int, dtype, device) -> tuple[Tensor, Tensor | None]:
    """Weights and their scales."""
    if kind == "plain":
        return torch.randn(outputs, inputs, device=device).to(dtype), None
    scale = torch.rand(outputs, device=device) + 0.5
    if kind == "int8":
        weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device=device)
        return weight, scale / 64
    if kind == "block":
        blocks = -(-outputs // 128), -(-inputs // 128)
        scale = 10 ** (2 * torch.rand(blocks, device=device) - 1)
    return torch.randn(outputs, inputs, device=device).to(FP8), scale


def expected(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    wide = weight.double() if scale is None else dequantize_weight(weight, scale).double()
    y = x.double() @ wide.T
    return y if bias is None else y + bias.double()


def assert_close(actual: Tensor, wide: Tensor) -> None:
    # The interpreter cuts bfloat16 off where a device rounds.
    limit = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}[actual.dtype]
    assert (actual.double() - wide).norm() <= limit * wide.norm()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_equals_the_wide_one(shape, dtype: torch.dtype, kind: str, device) -> None:
    x = torch.randn(1, shape[1], device=device).to(dtype)
    weight, scale = weights(kind, *shape, dtype, device)
    bias = torch.randn(shape[0], device=device).to(dtype)
    for tile in TILES:
        actual = matvec(x, weight, scale, bias, tile=tile)
        assert actual.dtype == dtype
        assert_close(actual, expected(x, weight, scale, bias))
    assert_close(matvec(x, weight, scale, None), expected(x, weight, scale, None))


def check_gates(kind: str, outputs: int, dtype, tile, activation: str, device) -> None:
    weight, scale = weights(kind, outputs, 360, dtype, device)
    x = torch.randn(1, 360, device=device).to(dtype) / 16
    bias = torch.randn(outputs, device=device).to(dtype)
    wide = act_and_mul(expected(x, weight, scale, bias).float(), activation)
    actual = matvec(x, weight, scale, bias, activation, tile)
    assert actual.shape == (1, outputs // 2) and actual.dtype == dtype
    # Gates, and what they gate, are rounded before they meet.
    limit = 3e-3 if dtype == torch.float16 else 1e-5
    assert (actual.float() - wide).norm() <= limit * wide.norm()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "clamped_swiglu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gates_of_every_activation(activation: str, dtype: torch.dtype, device) -> None:
    check_gates("fp8", 12, dtype, None, activation, device)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_gates_meet_what_they_gate(kind: str, tile: MatvecTile, device) -> None:
    check_gates(kind, 16, torch.float16, tile, "silu", device)
    check_gates(kind, 14, torch.float16, None, "silu", device)


def test_gates_and_what_they_gate_are_in_different_blocks(device) -> None:
    check_gates("block", 300, torch.float16, None, "silu", device)


@pytest.mark.parametrize("inputs", [2880, 9000])
def test_rows_longer_than_a_tile(inputs: int, device) -> None:
    """By the rules for many inputs, at a width that no power of two divides."""
    x = torch.randn(1, inputs, device=device).half()
    for kind in ("fp8", "block", "plain"):
        weight, scale = weights(kind, 18, inputs, x.dtype, device)
        packed = pack_linear(weight, scale)
        assert_close(linear(x, packed), expected(x, weight, scale, None))
        gated = gated_linear(x / 100, packed, None, "silu")
        wide = act_and_mul(expected(x / 100, weight, scale, None).float(), "silu")
        assert isinstance(gated, Tensor)
        assert (gated.float() - wide).norm() <= 3e-3 * wide.norm()


@pytest.mark.parametrize("kind", ["fp8", "block"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_the_outputs_that_read_it(kind: str, value, device) -> None:
    x = torch.randn(1, 360, device=device).bfloat16()
    weight, scale = weights(kind, 20, 360, x.dtype, device)
    x[0, 355] = value
    actual, read = matvec(x, weight, scale, None)[0].float(), weight[:, 355].float()
    want = read * value  # NaN where an infinity meets a zero
    assert torch.equal(actual.isnan(), want.isnan())
    assert torch.equal(actual[~want.isnan()], want[~want.isnan()])
    if device.type != "cuda":  # the interpreter takes a NaN in 8 bits for 480
        return
    weight[3, 17] = float("nan")
    x[0, 355] = 0.0
    assert matvec(x, weight, scale, None)[0].isnan().nonzero().flatten().tolist() == [3]


def test_every_8_bit_weight_is_widened_exactly(device) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(FP8)
    finite = codes[codes.float().isfinite()]
    weight = torch.zeros(16, 256, device=device, dtype=torch.uint8).view(FP8)
    weight[:, : len(finite)] = finite
    one = torch.zeros(1, 256, device=device, dtype=torch.float16)
    for at in range(0, 256, 5):
        one.zero_()[0, at] = 1.0
        actual = matvec(one, weight, torch.ones(16, device=device), None)
        assert torch.equal(actual[0].float(), weight[:, at].float())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tile", [*TILES, None], ids=str)
def test_a_norm_between_two_products(kind: str, dtype: torch.dtype, tile, device) -> None:
    """The first product leaves more parts of the sum than the second loads at a time."""
    if tile is not None and dtype == torch.bfloat16 and device.type != "cuda":
        pytest.skip("the interpreter takes minutes for all of them")
    hidden, eps, offset = 304, 0.1, 1.0
    x = torch.randn(1, 360, device=device).to(dtype)
    residual = torch.randn(1, hidden, device=device).to(dtype)
    norm_weight = torch.randn(hidden, device=device).to(dtype)
    first, first_scale = weights(kind, hidden, 360, dtype, device)
    bias = torch.randn(hidden, device=device).to(dtype)
    total = residual + matvec(x, first, first_scale, bias, tile=tile)
    token = matvec_add_norm(
        x, first, first_scale, bias, Norm(residual, norm_weight, eps, offset), tile
    )
    if dtype == torch.float32 or device.type == "cuda":
        assert torch.equal(residual, total)
    assert_close(residual, total.double())
    total = residual
    mean = total.double().square().mean()
    torch.testing.assert_close(token.squares.double().sum() / hidden, mean, rtol=1e-5, atol=0)
    wide = total.double() * (norm_weight.double() + offset)
    assert_close(token.values, wide)

    normalized = token.values.double() / (mean + eps).sqrt()
    second, second_scale = weights(kind, 36, hidden, dtype, device)
    bias = torch.randn(36, device=device).to(dtype)
    want = expected(normalized, second, second_scale, bias)
    assert_close(matvec(token, second, second_scale, bias, tile=tile), want)
    gates = expected(normalized / 16, second, second_scale, bias)
    token = UnscaledToken(token.values / 16, token.squares, eps)
    actual = matvec(token, second, second_scale, bias, "silu", tile)
    want = act_and_mul(gates.to(dtype), "silu")
    assert isinstance(want, Tensor)
    limit = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert (actual.float() - want.float()).norm() <= limit * want.float().norm()


@pytest.mark.parametrize(
    ("tokens", "dtype", "read"),
    [(1, torch.float32, False), (1, torch.float16, True), (2, torch.float32, True)],
)
def test_a_norm_is_a_kernel_of_its_own(tokens: int, dtype, read: bool, device) -> None:
    """Where other things read it, its values may be too large, or there are more tokens."""
    x, residual = (torch.randn(tokens, 64, device=device).to(dtype) for _ in range(2))
    packed = pack_linear(torch.randn(64, 64, device=device).to(dtype))
    weight = torch.ones(64, device=device, dtype=dtype)
    want, total = fused_add_rms_norm(linear(x, packed), residual.clone(), weight, 1e-6)
    actual, residual = linear_add_rms_norm(
        x, packed, None, residual, weight, 1e-6, into=packed if read else None
    )
    assert isinstance(actual, Tensor) and isinstance(want, Tensor)
    assert torch.equal(actual, want) and torch.equal(residual, total)


def test_the_reader_of_an_unscaled_token_may_be_any_product(device) -> None:
    x, residual = (torch.randn(1, 64, device=device) for _ in range(2))
    packed = pack_linear(torch.randn(64, 64, device=device))
    weight = torch.rand(64, device=device)
    plain, total = fused_add_rms_norm(linear(x, packed), residual.clone(), weight, 1e-6)
    assert isinstance(plain, Tensor)
    token, residual = linear_add_rms_norm(x, packed, None, residual, weight, 1e-6, into=packed)
    assert isinstance(token, UnscaledToken) and token.shape == plain.shape
    torch.testing.assert_close(linear(token, packed), linear(plain, packed))
    torch.testing.assert_close(
        gated_linear(token, packed, None, "silu"), gated_linear(plain, packed, None, "silu")
    )
    for left, right in zip(
        linear_add_rms_norm(token, packed, None, residual.clone(), weight, 1e-6),
        linear_add_rms_norm(plain, packed, None, total.clone(), weight, 1e-6),
        strict=True,
    ):
        torch.testing.assert_close(left, right)
