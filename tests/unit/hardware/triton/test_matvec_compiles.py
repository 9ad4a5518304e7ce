"""Products of one token compile for Hopper, which the interpreter does not show."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches

FP8 = torch.float8_e4m3fn


def launch_all() -> None:
    """Launch products of every kind of weights and activations, as the engine does."""
    from xllm.hardware.kernels.triton.linear import (
        gated_linear,
        linear,
        linear_add_rms_norm,
        pack_linear,
    )

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
            if dtype != torch.float16:
                residual = torch.empty(1, outputs, dtype=dtype)
                token, _ = linear_add_rms_norm(x, packed, None, residual, bias, 1e-6, into=packed)
                reader = pack_linear(torch.empty(outputs, outputs, dtype=FP8), torch.empty(outputs))
                gated_linear(token, reader, None, "silu")


def test_they_compile() -> None:
    launches, single_bytes = compiled_launches(__file__)
    assert launches == 66 and single_bytes == 0
