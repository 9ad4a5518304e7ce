"""Sinks, a router's bias and experts with biases compile for Hopper, at the shapes of gpt-oss."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches


def launch_all() -> None:
    """Launch attention with sinks and every product of biased experts, as the engine does."""
    from xllm.hardware.kernels.triton import moe
    from xllm.hardware.kernels.triton.attention import paged_attention
    from xllm.hardware.kernels.triton.route import route

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    cache, sinks = empty(8, 32, 8, 64), empty(64, dtype=torch.float32)
    rows, lens = torch.tensor([0, 1, 8], dtype=torch.int32), torch.tensor([70, 80]).int()
    table = torch.zeros(2, 4, dtype=torch.int32)
    for window in (0, 128):
        paged_attention(
            empty(8, 64, 64), cache, cache, rows, lens, table, 0.125, 0.0, window, 7, sinks
        )
    shapes = (8, 256, 192), (8, 192, 128), (8, 256), (8, 192)
    packed = moe.pack_experts(*(empty(*shape) for shape in shapes))
    for tokens in (1, 4, 32, 256):
        x = empty(tokens, 192)
        chosen = route(x, empty(8, 192), 4, True, empty(8))
        moe.apply_experts(x, packed, *chosen, "clamped_swiglu")


def test_they_compile() -> None:
    assert compiled_launches(__file__)[0] > 15
