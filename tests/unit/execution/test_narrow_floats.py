"""8-bit floats: what they make of the cache, and where they are refused."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from xllm.core.config import CacheConfig, ExecutionConfig, ModelConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.execution.worker import Worker, resources
from xllm.modeling.layers.attention import Attention
from xllm.modeling.layers.rope_config import RopeConfig
from xllm.modeling.layers.rotary import RotaryTable


@pytest.mark.parametrize(
    ("model", "cache", "named"),
    [
        (ModelConfig(quantization="fp8"), CacheConfig(), "--quantization fp8"),
        (ModelConfig(), CacheConfig(kv_cache_dtype="fp8_e4m3"), "--kv-cache-dtype fp8_e4m3"),
    ],
)
def test_a_device_that_cannot_compute_with_them_refuses(model, cache, named) -> None:
    execution = ExecutionConfig(device="cpu", num_threads=1)
    config = XllmConfig(model=model, cache=cache, execution=execution)
    worker = Worker(config, ModelFiles(name="tiny", folder="", config={}, format="dummy"))
    with pytest.raises(ValueError, match=f"{named} needs a CUDA device of compute capability 8.9"):
        worker.start()


def test_the_cache_has_the_models_type_or_8_bits() -> None:
    assert resources.cache_dtype(CacheConfig(), torch.bfloat16) == torch.bfloat16
    narrow = CacheConfig(kv_cache_dtype="fp8")
    assert resources.cache_dtype(narrow, torch.bfloat16) == torch.float8_e4m3fn


class TestCacheScales:
    """ME-13."""

    def model(self, *scaled: bool) -> nn.Module:
        rotary = RotaryTable(RopeConfig(rotary_dim=16, theta=10_000.0, max_position=64), 64)
        layers = [Attention(i, 4, 2, 16, rotary, scale=0.25) for i in range(len(scaled))]
        for layer, has in zip(layers, scaled, strict=True):
            if has:
                for name, target in layer.targets("model.layers.0.self_attn.attn"):
                    assert name in [f"model.layers.0.self_attn.{x}_scale" for x in "kv"]
                    target.load(torch.tensor([0.04]))
        return nn.ModuleList(layers)

    @pytest.mark.parametrize(
        ("scaled", "dtype", "warned"),
        [
            ((True, True), torch.float8_e4m3fn, []),
            ((True, False), torch.float8_e4m3fn, ["1 of 2"]),
            ((False, False, False), torch.float8_e4m3fn, ["3 of 3"]),
            ((False, False), torch.bfloat16, []),
        ],
    )
    def test_missing_scales_are_warned_of_once(self, scaled, dtype, warned, caplog) -> None:
        with caplog.at_level(logging.WARNING):
            resources.check_cache_scales(self.model(*scaled), dtype)
        assert len(caplog.messages) == len(warned)
        assert all(part in message for part, message in zip(warned, caplog.messages, strict=True))

    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_scale_that_is_none_is_refused(self, value: float) -> None:
        (layer,) = self.model(False)
        (_, target), _ = layer.targets("self_attn.attn")
        with pytest.raises(ValueError, match="k_scale of layer 0 must be above 0"):
            target.load(torch.tensor(value))
