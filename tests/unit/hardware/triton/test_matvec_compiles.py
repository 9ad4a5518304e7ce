"""Products of one token compile for Hopper, which the interpreter does not show."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches

FP8 = torch.float8_e4m3fn


def launch_all() -> None:
    """Launch products of every kind of weights and activations, as the engine does."""
    from xllm.hardware.kernels.triton.linear import gated_linear, linear, pack_linear

    cases = [(shape, torch.bfloat16) for shape in ((256, 2880), (520, 1024), (256, 12288))]
    cases += [((252, 300), torch.bfloat16), ((256, 2880), torch.float16)]
    cases += [((256, 2880), torch.float32)]
    for (outputs, inputs), dtype in cases:
        x, bias = torch.empty(1, inputs, dtype=dtype), torch.empty(outputs, dtype=dtype)
        blocks = torch.empty(-(-outputs // 128), -(-inputs // 128))
        for packed in (
            pack_linear(torch.empty(outputs, inputs, dtype=dtype)),
            pack_linear(torch.empty(outputs, inputs, dtype=FP8), torch.empty(outputs)),
            pack_linear(torch.empty(outputs, inputs, dtype=FP8), blocks),
        ):
            linear(x, packed)
            gated_linear(x, packed, bias, "silu")


def test_they_compile() -> None:
    launches, single_bytes = compiled_launches(__file__)
    assert launches == 36 and single_bytes == 0
