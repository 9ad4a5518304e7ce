"""Norm, activation and rotary kernels in Triton against the reference."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton.activation import act_and_mul
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm, rms_norm
from xllm.hardware.kernels.triton.rope import qk_norm_rope_kv_write


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_equals_reference(offset: float, device) -> None:
    x, weight = torch.randn(3, 40, device=device), torch.randn(40, device=device)
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5, offset), reference.rms_norm(x, weight, 1e-5, offset)
    )


def test_fused_add_rms_norm_adds_into_the_residual(device) -> None:
    x = torch.randn(3, 40, device=device, dtype=torch.bfloat16)
    residual, weight = torch.randn_like(x), torch.randn(40, device=device, dtype=torch.bfloat16)
    expected_residual = residual.clone()
    expected, expected_residual = reference.fused_add_rms_norm(x, expected_residual, weight, 1e-5)
    actual, same = fused_add_rms_norm(x, residual, weight, 1e-5)
    assert same is residual
    torch.testing.assert_close(residual, expected_residual, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "clamped_swiglu"])
def test_act_and_mul_equals_reference(activation: str, device) -> None:
    gate_up = torch.randn(3, 2 * 50, device=device) * 3
    torch.testing.assert_close(
        act_and_mul(gate_up, activation),
        reference.act_and_mul(gate_up, activation),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("norms", ["qk", "k", ""])
@pytest.mark.parametrize("rotary", [16, 8])
@pytest.mark.parametrize("heads", [(12, 3)])
def test_rope_writes_the_cache_and_returns_queries(
    norms: str, rotary: int, heads: tuple[int, int], device
) -> None:
    num_q, num_kv = heads
    qkv = torch.randn(4, (num_q + 2 * num_kv) * 16, device=device)
    positions = torch.tensor([5, 0, 9, 3], device=device)
    slots = torch.tensor([7, -1, 25, 8], device=device)
    cos_sin = torch.randn(10, rotary, device=device)
    weights = [torch.randn(16, device=device) if name in norms else None for name in "qk"]
    results = []
    for implementation in (qk_norm_rope_kv_write, reference.qk_norm_rope_kv_write):
        cache = torch.zeros(4, 2, num_kv, 8, 16, device=device)
        k_cache, v_cache = cache[:, 0].transpose(1, 2), cache[:, 1].transpose(1, 2)
        q = implementation(
            qkv, positions, cos_sin, k_cache, v_cache, slots, num_q, num_kv, 16, *weights, 1e-6, 0.5
        )
        results.append((q, cache))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)


def test_a_cache_of_8_bits_holds_scaled_keys_and_values(device) -> None:
    """ME-13: written divided by the scale, read with it, within 8-bit rounding."""
    k_scale, v_scale = 0.04, 0.05
    qkv = torch.randn(64, (4 + 2 * 2) * 16, device=device)
    slots, angles = torch.arange(64, device=device), torch.zeros(64, 8, device=device)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)  # a rotation by nothing
    for implementation in (qk_norm_rope_kv_write, reference.qk_norm_rope_kv_write):
        cache = torch.zeros(8, 2, 2, 8, 16, device=device, dtype=torch.float8_e4m3fn)
        views = [cache[:, i].transpose(1, 2) for i in (0, 1)]
        q = implementation(
            *(qkv, slots, cos_sin, *views, slots, 4, 2, 16, None, None, 1e-6, 0.0),
            *(k_scale, v_scale),
        )
        torch.testing.assert_close(q.flatten(1), qkv[:, :64] * k_scale)
        written = zip(views, (k_scale, v_scale), qkv[:, 64:].chunk(2, dim=1), strict=True)
        for view, scale, expected in written:
            restored = view.flatten(0, 1).flatten(1).float() * scale
            near = (restored - expected).abs() <= 0.07 * expected.abs() + scale * 2**-10
            # The interpreter's conversion loses a carry now and then.
            assert near.float().mean() > (0.95 if device.type == "cpu" else 0.999)
