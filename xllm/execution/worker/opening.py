"""The first half of a worker's start, the same for every kind of model: device, weights, cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.execution.worker import resources
from xllm.hardware.platforms import Platform
from xllm.kv_cache.layout import CacheDemand, CacheGroup
from xllm.modeling.attention import AttentionBackend, cache_groups, load_backend
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.pooling import PoolingModel

Progress = Callable[[str, float], None]  # phase, fraction 0..1
ModelT = TypeVar("ModelT", CausalLM, PoolingModel)
LoadedT = TypeVar("LoadedT", CausalLM, PoolingModel, covariant=True)


class Load(Protocol[LoadedT]):
    """``load_model`` or ``load_pooling_model``."""

    def __call__(
        self,
        files: ModelFiles,
        *,
        dtype: torch.dtype,
        quantization: str | None,
        max_model_len: int | None,
        seed: int,
        keep_fp8: bool,
        progress: Callable[[int, int], None],
    ) -> LoadedT:
        """Build and load the model on the default torch device."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedModel(Generic[ModelT]):
    """A loaded model, and what its cache will look like."""

    config: XllmConfig  # with what the platform decides filled in
    platform: Platform
    backend: AttentionBackend
    model: ModelT
    groups: tuple[CacheGroup, ...]  # sized; none for an encoder
    cache_dtype: torch.dtype


def open_model(
    config: XllmConfig, files: ModelFiles, load: Load[ModelT], progress: Progress
) -> OpenedModel[ModelT]:
    """Open the device, load the model and size its KV cache. Blocks.

    Raises:
        ValueError: the model or a setting does not fit; the message names it.
    """
    platform = resources.open_platform(config.execution)
    config = resources.with_step_tokens(config, platform)
    resources.check_fp8(config, platform)
    backend = load_backend(resources.attention_backend(config.execution, platform))
    phase = "load weights"
    progress(phase, 0.0)
    with platform.device:
        model = load(
            files,
            dtype=resources.resolve_dtype(config.model.dtype, platform),
            quantization=config.model.quantization,
            max_model_len=config.model.max_model_len,
            seed=config.model.seed,
            keep_fp8=platform.supports_fp8,
            progress=lambda done, total: progress(phase, done / max(total, 1)),
        )
    dtype = resources.cache_dtype(config.cache, model.dtype)
    resources.check_cache_scales(model, dtype)
    block_size = config.cache.block_size or backend.preferred_block_size
    groups = cache_groups(model, block_size, dtype.itemsize)
    if groups:
        progress("allocate KV cache", 0.0)
        demand = CacheDemand.of(config.scheduler, model.config.max_len)
        groups = resources.size_cache(groups, config.cache, demand, platform)
    return OpenedModel(config, platform, backend, model, groups, dtype)
