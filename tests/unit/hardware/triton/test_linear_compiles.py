"""Streamed products compile for Hopper, which the interpreter does not show."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches


def launch_all() -> None:
    """Launch a product with and without gates, for every height of tile, as the engine does."""
    from xllm.hardware.kernels.triton.linear import gated_linear, linear, pack_linear

    kinds = [(torch.bfloat16, False, (16, 32)), (torch.float16, False, (32,))]
    kinds += [(torch.bfloat16, True, (32, 64))]
    for dtype, int8, heights in kinds:
        for outputs, inputs in ((256, 4096), (256, 1056)):  # shared out, and with a rest
            weight, scale = torch.empty(outputs, inputs, dtype=dtype), None
            if int8:
                weight, scale = weight.to(torch.int8), torch.empty(outputs)
            packed = pack_linear(weight, scale)
            for tokens in heights:
                x = torch.empty(tokens, inputs, dtype=dtype)
                linear(x, packed)
                gated_linear(x, packed, torch.empty(outputs, dtype=dtype), "silu")


def test_they_compile() -> None:
    launches, single_bytes = compiled_launches(__file__)
    assert launches == 20 and single_bytes == 0
