"""A scheduler that fits a started worker."""

from __future__ import annotations

import dataclasses

from xllm.control.scheduler.scheduler import Scheduler
from xllm.core.config import CacheConfig, SchedulerConfig
from xllm.core.grammar import GrammarCache
from xllm.kv_cache.blocks import BlockManager
from xllm.kv_cache.layout import CacheDemand, WorkerInfo


def fit_to_worker(config: SchedulerConfig, info: WorkerInfo) -> SchedulerConfig:
    """The config with the worker's step size where none was asked for."""
    if config.max_num_batched_tokens:
        return config
    return dataclasses.replace(config, max_num_batched_tokens=info.max_step_tokens)


def build_scheduler(
    config: SchedulerConfig,
    cache_config: CacheConfig,
    info: WorkerInfo,
    grammars: GrammarCache | None = None,
) -> Scheduler:
    """Build the block accounting for the worker's cache groups, and a scheduler on top.

    Raises:
        ValueError: unknown scheduling or priority policy.
    """
    config = fit_to_worker(config, info)
    return Scheduler(
        config,
        BlockManager(info.cache_groups, CacheDemand.of(config, info.max_model_len)),
        info.vocab_size,
        grammars=grammars,
        enable_prefix_caching=cache_config.enable_prefix_caching,
        full_step=info.full_step,
        find_shared_prefixes=info.reads_shared_prefixes,
    )
