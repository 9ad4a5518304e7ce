"""Norm, activation, rotation and cache write equal the reference."""

from __future__ import annotations

import pytest
import torch

from tests.contract.kernels.harness import DTYPES, Implementation, random, tolerance
from xllm.hardware.kernels import reference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [576, 40, 7])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(
    implementation: Implementation, dtype: torch.dtype, hidden: int, offset: float
) -> None:
    x, weight = random(5, hidden, dtype=dtype), random(hidden, dtype=dtype, seed=1)
    torch.testing.assert_close(
        implementation.rms_norm(x, weight, 1e-5, offset),
        reference.rms_norm(x, weight, 1e-5, offset),
        **tolerance(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 120])
def test_fused_add_rms_norm_adds_into_the_residual(
    implementation: Implementation, dtype: torch.dtype, tokens: int
) -> None:
    x, weight = random(tokens, 576, dtype=dtype), random(576, dtype=dtype, seed=1)
    residual = random(tokens, 576, dtype=dtype, seed=2)
    expected, summed = reference.fused_add_rms_norm(x, residual.clone(), weight, 1e-5)
    actual, same = implementation.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert same is residual
    assert torch.equal(residual, summed)
    torch.testing.assert_close(actual, expected, **tolerance(dtype))


def test_a_rows_norm_does_not_depend_on_the_batch(implementation: Implementation) -> None:
    x, weight = random(200, 576), random(576, seed=1)
    whole = implementation.rms_norm(x, weight, 1e-5)
    for row in (0, 7, 199):
        assert torch.equal(implementation.rms_norm(x[row : row + 1], weight, 1e-5)[0], whole[row])


def test_no_tokens_at_all(implementation: Implementation) -> None:
    empty = torch.empty(0, 64)
    assert implementation.rms_norm(empty, torch.ones(64), 1e-5).shape == (0, 64)
    assert implementation.act_and_mul(empty, "silu").shape == (0, 32)
    packed = implementation.pack_linear(random(32, 64))
    assert implementation.linear(empty, packed).shape == (0, 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "clamped_swiglu"])
@pytest.mark.parametrize("shape", [(3, 2 * 50), (40, 2 * 1536)])
def test_act_and_mul(
    implementation: Implementation, dtype: torch.dtype, activation: str, shape: tuple[int, int]
) -> None:
    gate_up = (random(*shape) * 5).to(dtype)
    torch.testing.assert_close(
        implementation.act_and_mul(gate_up, activation),
        reference.act_and_mul(gate_up, activation),
        **tolerance(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_keep_their_limits(implementation: Implementation, dtype: torch.dtype) -> None:
    gate = torch.tensor([[-1e4, -100.0, -0.0, 100.0, 1e4, float("nan")]], dtype=dtype)
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    for activation in ("silu", "gelu_tanh", "gelu"):
        out = implementation.act_and_mul(gate_up, activation)[0]
        expected = torch.tensor([0.0, 0.0, 0.0, 100.0, 1e4], dtype=dtype)
        torch.testing.assert_close(out[:5], expected, rtol=0.0, atol=1e-6)
        assert out[5].isnan()


def test_silu_in_bfloat16_is_off_by_its_rounding(implementation: Implementation) -> None:
    """Beside the half unit of that, a twelfth of one."""
    gate = (random(64, 1536) * 8).bfloat16()
    out = implementation.act_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1), "silu")
    exact = torch.nn.functional.silu(gate.double())
    assert ((out.double() - exact).abs() <= exact.abs() * (2**-8 + 3e-4)).all()


def test_an_unknown_activation_names_itself(implementation: Implementation) -> None:
    with pytest.raises(ValueError, match=r"activation must be .* got 'relu'"):
        implementation.act_and_mul(random(1, 8), "relu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (128, 128), (24, 24)])
def test_rotation_and_cache_write(
    implementation: Implementation, dtype: torch.dtype, norm: bool, head_dim: int, rotary: int
) -> None:
    tokens, heads = 5, (6, 2)
    qkv = random(tokens, (heads[0] + 2 * heads[1]) * head_dim, dtype=dtype)
    positions = torch.tensor([5, 0, 9, 3, 7])
    slots = torch.tensor([7, -1, 25, 8, -4])
    cos_sin = random(10, rotary, seed=1)
    weights = [random(head_dim, dtype=dtype, seed=s) if norm else None for s in (2, 3)]
    results = []
    for op in (implementation.qk_norm_rope_kv_write, reference.qk_norm_rope_kv_write):
        cache = torch.zeros(2, 4, heads[1], 8, head_dim, dtype=dtype)
        views = [part.transpose(1, 2) for part in cache]
        q = op(qkv, positions, cos_sin, *views, slots, *heads, head_dim, *weights, 1e-6, 0.5)
        results.append((q, cache))
    (q, cache), (expected_q, expected_cache) = results
    torch.testing.assert_close(q, expected_q, **tolerance(dtype))
    torch.testing.assert_close(cache, expected_cache, **tolerance(dtype))
    assert int((cache[0].abs().sum(dim=(1, 3)) > 0).sum()) == 3  # skipped slots are untouched
