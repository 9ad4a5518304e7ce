"""Kernels of experts compile for Hopper, which the interpreter does not show."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches

HIDDEN, INNER, EXPERTS, TOP_K = 512, 256, 16, 4


def launch_all() -> None:
    """Launch routing and experts as the engine does, with every choice of tiles."""
    from xllm.hardware.kernels.triton import linear, moe, route

    options = {"dtype": torch.bfloat16}
    gate_up = torch.empty(EXPERTS, 2 * INNER, HIDDEN, **options)
    down = torch.empty(EXPERTS, HIDDEN, INNER, **options)
    biases = gate_up[:, :, 0], down[:, :, 0]
    for bias, kind in (((), "silu"), (biases, "clamped_swiglu")):
        packed = moe.pack_experts(gate_up, down, *bias)
        x = torch.empty(1, HIDDEN, **options)
        square = linear.pack_linear(torch.empty(HIDDEN, HIDDEN, **options))
        add_norm = torch.empty_like(x), x[0], 1e-6
        token, _ = linear.linear_add_rms_norm(x, square, None, *add_norm, into=packed)
        chosen = route.route(token, gate_up[0, :EXPERTS], TOP_K, True)
        moe.experts_add_rms_norm(token, packed, *chosen, kind, *add_norm, into=square)
        for tokens in (1, 5, 64, 100, 400, 2000):
            x = torch.empty(tokens, HIDDEN, **options)
            weights, experts = route.route(x, gate_up[0, :EXPERTS], TOP_K, True)
            moe.apply_experts(x, packed, weights, experts, kind)
            # Devices with less shared memory, with and without descriptors.
            for descriptors in (True, False) if tokens > moe.MAX_STREAMED_TOKENS else ():
                tile = moe.choose_tile(tokens * TOP_K / EXPERTS, x.dtype, 99 << 10, descriptors)
                moe.grouped_experts(x, packed, weights, experts, kind, tile)


def test_they_compile() -> None:
    assert compiled_launches(__file__)[0] > 60
