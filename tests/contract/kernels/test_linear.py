"""Linear layers equal the reference, and a row's bits never depend on the other rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.contract.kernels.harness import Implementation, random
from xllm.hardware.kernels import reference

# (activations, weights)
FORMATS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.int8),
]
SHAPES = [(576, 576), (1536, 576), (64, 100), (96, 60), (50, 48), (4160, 40)]  # (K, N)


def _weight(n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    if dtype != torch.int8:
        return (random(n, k, seed=1) / k**0.5).to(dtype), None
    generator = torch.Generator().manual_seed(1)
    weight = torch.randint(-127, 128, (n, k), generator=generator, dtype=torch.int8)
    return weight, (random(n, seed=2).abs() + 0.5) / (64 * k**0.5)


def _expected(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    out = x.double() @ weight.double().T
    if scale is not None:
        out *= scale.double()
    return (out if bias is None else out + bias.double()).to(x.dtype)


@pytest.mark.parametrize(("dtype", "weight_dtype"), FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 2, 5, 7, 16, 33, 150])
def test_product(
    implementation: Implementation,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    shape: tuple[int, int],
    tokens: int,
) -> None:
    k, n = shape
    x = random(tokens, k, dtype=dtype)
    weight, scale = _weight(n, k, weight_dtype)
    bias = random(n, dtype=dtype, seed=3) if n != k else None
    packed = implementation.pack_linear(weight, scale)
    assert packed.out_features == n
    limits = (
        {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    )
    torch.testing.assert_close(
        implementation.linear(x, packed, bias), _expected(x, weight, scale, bias), **limits
    )


@pytest.mark.parametrize(("dtype", "weight_dtype"), FORMATS)
@pytest.mark.parametrize("shape", [(576, 160), (50, 48), (2100, 32)])
def test_a_rows_bits_do_not_depend_on_the_number_of_rows(
    implementation: Implementation,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    shape: tuple[int, int],
) -> None:
    k, n = shape
    packed = implementation.pack_linear(*_weight(n, k, weight_dtype))
    x = random(140, k, dtype=dtype)
    whole = implementation.linear(x, packed)
    for tokens in (*range(1, 18), 31, 32, 33, 64, 129):
        assert torch.equal(implementation.linear(x[:tokens].clone(), packed), whole[:tokens])
    assert torch.equal(implementation.linear(x[139:].clone(), packed), whole[139:])


@pytest.mark.parametrize(("dtype", "weight_dtype"), FORMATS)
def test_nor_on_how_many_rows_share_an_expansion_of_the_weights(
    implementation: Implementation, dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    packed = implementation.pack_linear(*_weight(640, 64, weight_dtype))
    x = random(700, 64, dtype=dtype)
    whole = implementation.linear(x, packed)
    for first, last in ((0, 128), (128, 641), (600, 700)):
        assert torch.equal(implementation.linear(x[first:last].clone(), packed), whole[first:last])


@pytest.mark.parametrize(("dtype", "weight_dtype"), FORMATS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("shape", [(576, 192), (50, 96), (64, 48)])
def test_a_gated_layer_is_a_product_and_an_activation_to_the_bit(
    implementation: Implementation,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    activation: str,
    shape: tuple[int, int],
) -> None:
    k, n = shape
    packed = implementation.pack_linear(*_weight(n, k, weight_dtype))
    for tokens, bias in ((1, None), (40, None), (150, random(n, dtype=dtype, seed=3))):
        x = random(tokens, k, dtype=dtype)
        expected = implementation.act_and_mul(implementation.linear(x, packed, bias), activation)
        assert torch.equal(implementation.gated_linear(x, packed, bias, activation), expected)


@pytest.mark.parametrize(("dtype", "weight_dtype"), FORMATS)
def test_a_norm_after_a_product_is_both_in_a_row(
    implementation: Implementation, dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    packed = implementation.pack_linear(*_weight(96, 64, weight_dtype))
    weight, bias = random(96, dtype=dtype, seed=4), random(96, dtype=dtype, seed=3)
    for tokens in (1, 40):
        x, residual = random(tokens, 64, dtype=dtype), random(tokens, 96, dtype=dtype, seed=5)
        product = implementation.linear(x, packed, bias)
        want, total = implementation.fused_add_rms_norm(product, residual.clone(), weight, 1e-6)
        got, same = implementation.linear_add_rms_norm(x, packed, bias, residual, weight, 1e-6)
        assert same is residual
        assert torch.equal(got, want) and torch.equal(residual, total)


def test_float16_runs_too(implementation: Implementation) -> None:
    x = random(3, 64, dtype=torch.float16)
    for weight_dtype in (torch.float16, torch.int8):
        weight, scale = _weight(48, 64, weight_dtype)
        packed = implementation.pack_linear(weight, scale)
        expected = reference.linear(x, reference.pack_linear(weight, scale))
        torch.testing.assert_close(implementation.linear(x, packed), expected, rtol=2e-3, atol=2e-3)


def test_int8_and_scale_come_together(implementation: Implementation) -> None:
    with pytest.raises(ValueError, match="scale must come with"):
        implementation.pack_linear(torch.zeros(16, 32, dtype=torch.int8))
    with pytest.raises(ValueError, match="scale must come with"):
        implementation.pack_linear(torch.zeros(16, 32), torch.ones(16))
