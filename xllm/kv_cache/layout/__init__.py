"""Arithmetic of the KV cache: what a block holds, how many bytes it takes, how many fit.
Owns cache specs, groups and sizing; allocates nothing and imports no torch.
Public: the names below."""

from xllm.kv_cache.layout.sizing import (
    CacheDemand,
    capacity_tokens,
    fit_blocks_to_bytes,
    fit_blocks_to_tokens,
    max_blocks_per_sequence,
    max_concurrency,
    total_bytes,
)
from xllm.kv_cache.layout.spec import CacheGroup, CacheSpec, bytes_per_block, first_full_group
from xllm.kv_cache.layout.worker_info import WorkerInfo

__all__ = [
    "CacheDemand",
    "CacheGroup",
    "CacheSpec",
    "WorkerInfo",
    "bytes_per_block",
    "capacity_tokens",
    "first_full_group",
    "fit_blocks_to_bytes",
    "fit_blocks_to_tokens",
    "max_blocks_per_sequence",
    "max_concurrency",
    "total_bytes",
]
