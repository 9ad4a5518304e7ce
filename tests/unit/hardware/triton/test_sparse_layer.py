"""A sparse layer on Triton's kernels equals the same one on the reference."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.moe.block import SparseMLP
from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.quantization.unquantized import Method

HIDDEN = 48
_config = functools.partial(
    ExpertsConfig, num_experts=6, num_experts_per_token=3, intermediate_size=40
)


@pytest.fixture(autouse=True)
def _platform() -> Iterator[None]:
    yield
    ops.use_platform("reference")


def _run(
    platform: str, tokens: int, config: ExpertsConfig, activation: str, device: torch.device
) -> list[Tensor]:
    """A product, the block and a product, with the norms between them: last output, residual."""
    ops.use_platform(platform)
    shared = {"method": Method(), "dtype": torch.float32}
    with device:
        before = Linear(40, HIDDEN, **shared)
        block = SparseMLP(HIDDEN, config, activation, **shared)
        after = Linear(HIDDEN, 32, **shared)
        readers = block.reader, after
        norms = [RMSNorm(HIDDEN, 1e-5, dtype=torch.float32, reader=reader) for reader in readers]
    generator = torch.Generator().manual_seed(0)
    for module in (before, block, after, *norms):
        for child in module.modules():
            if hasattr(child, "targets"):
                for _, target in child.targets("x"):
                    target.load(torch.randn(target.shape, generator=generator) / 8)
                child.after_load()
    x, residual = (torch.randn(tokens, n, generator=generator).to(device) for n in (40, HIDDEN))
    middle, residual = before.add_norm(x, residual, norms[0])
    end, residual = block.add_norm(middle, residual, norms[1])
    if platform == "triton" and config.shared_intermediate_size == 0:
        assert isinstance(middle, UnscaledToken) == isinstance(end, UnscaledToken) == (tokens == 1)
    return [after(end), residual]


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize(
    ("config", "activation"),
    [
        (_config(normalize=True), "silu"),
        (_config(normalize=True, biased=True), "clamped_swiglu"),
        (_config(normalize=False, shared_intermediate_size=24), "silu"),
    ],
    ids=["plain", "biased", "shared"],
)
def test_it_equals_the_reference(config, activation, tokens, device) -> None:
    expected = _run("reference", tokens, config, activation, device)
    actual = _run("triton", tokens, config, activation, device)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
