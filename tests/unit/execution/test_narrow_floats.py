"""8-bit floats: what they make of the cache, and where they are refused."""

from __future__ import annotations

import pytest
import torch

from xllm.core.config import CacheConfig, ExecutionConfig, ModelConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.execution.worker import Worker, resources


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
