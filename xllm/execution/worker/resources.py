"""What the worker settles once at start-up: device, number format, size of the KV cache."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import torch
from torch import nn

from xllm.core.config import CacheConfig, ExecutionConfig, XllmConfig
from xllm.hardware.graphs import GraphApi
from xllm.hardware.platforms import Platform, resolve
from xllm.kv_cache.layout import (
    CacheDemand,
    CacheGroup,
    capacity_tokens,
    fit_blocks_to_bytes,
    fit_blocks_to_tokens,
    max_concurrency,
    total_bytes,
)
from xllm.modeling.attention import AttentionBackend, GraphSupport, best_backend
from xllm.modeling.layers.attention import Attention

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Prompt tokens that keep the device busy without delaying running streams for long.
_STEP_TOKENS = {"cuda": 8192}
_OTHER_STEP_TOKENS = 2048
# A CPU shares its memory with everything else on the machine, so it takes no share of it unasked.
_CPU_CACHE_BYTES = 4 << 30


def open_platform(config: ExecutionConfig) -> Platform:
    """The platform of ``--device``, ready for use.

    Raises:
        ValueError: this machine lacks the device.
    """
    platform = resolve(config.device)
    platform.start(config.num_threads)
    return platform


def attention_backend(config: ExecutionConfig, platform: Platform) -> str:
    """Name of the attention backend to load."""
    if config.attention_backend != "auto":
        return config.attention_backend
    name, reasons = best_backend(platform.name)
    for better, reason in reasons.items():
        logger.info("attention backend %s instead of %s: %s", name, better, reason)
    return name


def open_graphs(
    config: ExecutionConfig, platform: Platform, backend: AttentionBackend
) -> GraphApi | None:
    """What captures device graphs, or None where steps run eagerly."""
    if config.enforce_eager or backend.graph_support < GraphSupport.DECODE:
        return None
    if backend.device_type != platform.device.type:
        return None
    return platform.graphs


def resolve_dtype(name: str, platform: Platform) -> torch.dtype:
    """The type of weights and activations that ``--dtype`` means on this device."""
    return platform.default_dtype if name == "auto" else _DTYPES[name]


def check_fp8(config: XllmConfig, platform: Platform) -> None:
    """Refuse 8-bit floats where the device cannot compute with them.

    Raises:
        ValueError: naming the setting.
    """
    asked = [
        f"--{name} {value}"
        for name, value in (
            ("quantization", config.model.quantization),
            ("kv-cache-dtype", config.cache.kv_cache_dtype),
        )
        if value in ("fp8", "fp8_block", "fp8_e4m3")
    ]
    if asked and not platform.supports_fp8:
        raise ValueError(
            f"{asked[0]} needs a CUDA device of compute capability 8.9 or later; this is "
            f"{platform.description}"
        )


def with_step_tokens(config: XllmConfig, platform: Platform) -> XllmConfig:
    """The config with the device's step size where none was asked for."""
    if config.scheduler.max_num_batched_tokens:
        return config
    tokens = _STEP_TOKENS.get(platform.name, _OTHER_STEP_TOKENS)
    scheduler = dataclasses.replace(config.scheduler, max_num_batched_tokens=tokens)
    return dataclasses.replace(config, scheduler=scheduler)


def cache_dtype(config: CacheConfig, model_dtype: torch.dtype) -> torch.dtype:
    """The type of cached keys and values."""
    return model_dtype if config.kv_cache_dtype == "auto" else torch.float8_e4m3fn


def check_cache_scales(model: nn.Module, dtype: torch.dtype) -> None:
    """Warn once of layers whose keys and values go into 8 bits at a scale that nobody chose."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    missing = sum(not layer.has_cache_scales for layer in layers)
    if dtype == torch.float8_e4m3fn and missing:
        logger.warning(
            "the checkpoint has no k_scale and v_scale in %d of %d layers: their 8-bit KV cache "
            "uses a scale of 1.0",
            missing,
            len(layers),
        )


def size_cache(
    groups: Sequence[CacheGroup],
    config: CacheConfig,
    demand: CacheDemand,
    platform: Platform,
) -> tuple[CacheGroup, ...]:
    """Set the number of blocks of every group, and say what they hold.

    Call it when the weights are loaded: they count as used memory.

    Raises:
        ValueError: the memory does not hold one block.
    """
    if config.num_kv_tokens is not None:
        sized = fit_blocks_to_tokens(groups, config.num_kv_tokens, demand)
    else:
        sized = fit_blocks_to_bytes(groups, _budget_bytes(config, platform), demand)
    logger.debug(
        "KV cache: %s tokens in %.2f GiB; at most %.1f sequences of %s tokens at once",
        f"{_num_tokens(sized):,}",
        total_bytes(sized) / 2**30,
        max_concurrency(sized, demand),
        f"{demand.max_model_len:,}",
    )
    longest = capacity_tokens(sized, demand)
    if longest < demand.max_model_len:
        logger.warning(
            "one sequence holds at most %d tokens in this KV cache, less than --max-model-len %d",
            longest,
            demand.max_model_len,
        )
    return sized


def _budget_bytes(config: CacheConfig, platform: Platform) -> int:
    memory = platform.memory_info()
    used = memory.total_bytes - memory.free_bytes
    budget = int(memory.total_bytes * config.max_memory_utilization) - used
    if budget <= 0:
        raise ValueError(
            f"max_memory_utilization {config.max_memory_utilization:g} of "
            f"{memory.total_bytes / 2**30:.1f} GiB leaves nothing for the KV cache: "
            f"{used / 2**30:.1f} GiB are in use"
        )
    ceiling = config.max_cache_size
    if not ceiling and platform.name == "cpu":
        ceiling = _CPU_CACHE_BYTES
    return min(budget, ceiling) if ceiling else budget


def _num_tokens(groups: Sequence[CacheGroup]) -> int:
    """Tokens that the full-attention groups hold, or the largest group where there is none."""
    sizes = [(g.num_blocks - 1) * g.spec.block_size for g in groups if g.spec.window is None]
    return min(sizes) if sizes else max((g.num_blocks - 1) * g.spec.block_size for g in groups)
