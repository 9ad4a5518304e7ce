"""Streamed matrix products in Triton against the library's."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels.triton import linear as linears
from xllm.hardware.kernels.triton.activation import act_and_mul
from xllm.hardware.kernels.triton.fp8 import quantize_tokens
from xllm.hardware.kernels.triton.linear import (
    StreamTile,
    choose_tile,
    gated_linear,
    linear,
    max_streamed_tokens,
    pack_linear,
    stream_linear,
)

TILES = [
    StreamTile(16, 32),
    StreamTile(16, 256),
    StreamTile(16, 64, k_shares=2),
    StreamTile(32, 64, k_shares=3),
]


def eighths(*shape: int, device: torch.device) -> torch.Tensor:
    """Multiples of 1/8 from -1 to 1: sums of their products are exact in any order. The
    interpreter's products are NumPy's, which orders a sum by its place in the matrix."""
    return torch.randint(-8, 9, shape, device=device) / 8


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("tokens", [2, 5])
def test_streamed_product_equals_matmul(tile: StreamTile, tokens: int, device) -> None:
    x = torch.randn(tokens, 176, device=device)
    weight, bias = torch.randn(40, 176, device=device), torch.randn(40, device=device)
    actual = stream_linear(x, pack_linear(weight), bias, tile)
    torch.testing.assert_close(actual, x @ weight.T + bias, rtol=1e-5, atol=1e-4)


@pytest.fixture
def library(monkeypatch) -> list[int]:
    """The tokens of every product that the library computed, on a device of 132 processors."""
    tokens: list[int] = []
    plain = torch.nn.functional.linear

    def noted(x: torch.Tensor, *args) -> torch.Tensor:
        tokens.append(x.shape[0])
        return plain(x, *args)

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    monkeypatch.setattr(linears, "num_multiprocessors", lambda device: 132)
    return tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "inputs"), [(72, 136), (48, 2048)])
@pytest.mark.parametrize("tokens", [17, 31, 32, 33])
def test_small_weights_are_streamed_up_to_32_tokens(
    tokens: int, outputs: int, inputs: int, dtype: torch.dtype, library: list[int], device
) -> None:
    x = eighths(tokens, inputs, device=device).to(dtype)
    weight = eighths(outputs, inputs, device=device).to(dtype)
    bias = eighths(outputs, device=device).to(dtype)
    packed = pack_linear(weight)
    actual = linear(x, packed, bias)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=1e-2)
    gated = gated_linear(x, packed, bias, "silu")
    assert torch.equal(gated, act_and_mul(actual, "silu"))
    assert library == [33] * 2 * (tokens == 33)


def test_int8_weights_are_never_widened_for_64_tokens(library: list[int], device) -> None:
    weight = torch.randint(-127, 128, (40, 176), dtype=torch.int8, device=device)
    scale = torch.rand(40, device=device) / 100
    packed = pack_linear(weight, scale)
    for tokens in (17, 64, 65):
        x = eighths(tokens, 176, device=device).half()
        actual = linear(x, packed)
        expected = (x.double() @ weight.double().T) * scale.double()
        torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=1e-2)
        assert torch.equal(gated_linear(x, packed, None, "silu"), act_and_mul(actual, "silu"))
    assert library == [65, 65]


def test_large_weights_and_float32_leave_17_tokens_to_the_library() -> None:
    bf16, f32 = torch.bfloat16, torch.float32

    def most(outputs: int, inputs: int, dtype: torch.dtype) -> int:
        return max_streamed_tokens(
            pack_linear(torch.empty(outputs, inputs, dtype=dtype, device="meta")), dtype
        )

    assert most(4096, 12288, bf16) == most(1 << 13, 1 << 13, bf16) == 32
    assert most(24576, 4096, bf16) == most(151936, 1024, bf16) == most(64, 64, f32) == 16


@pytest.mark.parametrize(
    ("outputs", "inputs", "few", "more"),
    [(4096, 4096, 4, 2), (1024, 2048, 4, 4), (6144, 4096, 1, 1), (4096, 1024, 1, 1)],
)
def test_more_than_16_tokens_get_one_program_a_multiprocessor(
    outputs: int, inputs: int, few: int, more: int
) -> None:
    weight = torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta")
    shares = [choose_tile(tokens, weight, 132).k_shares for tokens in (2, 16, 17, 32)]
    assert shares == [few, few, more, more]


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_int8_weights_are_scaled_per_output(tokens: int, device) -> None:
    x = torch.randn(tokens, 64, device=device)
    weight = torch.randint(-127, 128, (24, 64), dtype=torch.int8, device=device)
    scale = torch.rand(24, device=device)
    actual = linear(x, pack_linear(weight, scale), None)
    torch.testing.assert_close(
        actual, x @ (weight.float() * scale[:, None]).T, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_fp8_weights_are_scaled_per_output(tokens: int, device) -> None:
    x = torch.randn(tokens, 64, device=device)
    weight = torch.randn(24, 64, device=device).to(torch.float8_e4m3fn)
    scale = torch.rand(24, device=device)
    actual = linear(x, pack_linear(weight, scale), None)
    torch.testing.assert_close(
        actual, x @ (weight.float() * scale[:, None]).T, rtol=1e-4, atol=1e-3
    )


def test_tokens_are_quantized_by_their_largest_value(device) -> None:
    sizes = torch.tensor([1.0, 1e4, 1e-4, 1.0, 3.0], device=device)
    x = torch.randn(5, 48, device=device) * sizes[:, None]
    x[3] = 0.0
    quantized = quantize_tokens(x, 48)
    values, scale = quantized.values, quantized.scale[0]
    torch.testing.assert_close(scale[[0, 1, 2, 4]], x[[0, 1, 2, 4]].abs().amax(dim=1) / 448)
    assert scale[3] == 1.0 and not values[3].float().any()
    assert values.float().abs().amax(dim=1)[0] == 448.0
    if device.type == "cuda":  # the interpreter's conversion loses a carry
        restored = values.float() * scale[:, None]
        assert ((restored - x).norm(dim=1) <= 0.04 * x.norm(dim=1)).all()


@pytest.mark.parametrize("tokens", [2, 40, 64])
@pytest.mark.parametrize("tile", [StreamTile(16, 32), StreamTile(32, 64, k_shares=2)], ids=str)
def test_8_bit_operands_are_scaled_on_both_sides(tokens: int, tile: StreamTile, device) -> None:
    x = torch.randn(tokens, 160, device=device).to(torch.float8_e4m3fn)
    weight = torch.randn(48, 160, device=device).to(torch.float8_e4m3fn)
    x_scale, scale = torch.rand(tokens, device=device), torch.rand(48, device=device)
    packed = pack_linear(weight, scale)
    actual = stream_linear(x, packed, None, tile, x_scale, torch.bfloat16)
    wide = (x.float() * x_scale[:, None]) @ (weight.float() * scale[:, None]).T
    torch.testing.assert_close(actual.float(), wide, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("tokens", [3, 20, 70])
def test_a_gated_product_equals_product_and_activation(
    tokens: int, weight_dtype: torch.dtype | None, dtype: torch.dtype, device
) -> None:
    x = eighths(tokens, 96, device=device).to(dtype)
    weight, scale = eighths(2 * 21, 96, device=device), None
    if weight_dtype is not None:
        weight, scale = weight.to(weight_dtype), torch.rand(2 * 21, device=device)
    else:
        weight = weight.to(dtype)
    packed, bias = pack_linear(weight, scale), eighths(2 * 21, device=device).to(dtype)
    expected = act_and_mul(linear(x, packed, bias), "silu")
    assert torch.equal(gated_linear(x, packed, bias, "silu"), expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "clamped_swiglu"])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("tokens", [2, 5])
def test_gates_of_any_tile(tokens: int, tile: StreamTile, activation: str, device) -> None:
    x = eighths(tokens, 176, device=device)
    packed = pack_linear(eighths(44, 176, device=device))
    expected = act_and_mul(stream_linear(x, packed, None, tile), activation)
    assert torch.equal(stream_linear(x, packed, None, tile, activation=activation), expected)


def test_an_unknown_activation_is_refused(device) -> None:
    packed = pack_linear(torch.randn(8, 16, device=device))
    with pytest.raises(ValueError, match="activation must be"):
        gated_linear(torch.randn(1, 16, device=device), packed, None, "relu")
