"""Attention backends, one file each, found by name.

Owns how paged attention runs on a device and what it must plan per step.
Does not own the KV cache's memory (``kv_cache.storage``) nor block tables (``execution``).
"""

from xllm.modeling.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    ForwardContext,
    GraphSupport,
    cache_groups,
)
from xllm.modeling.attention.registry import best_backend, load_backend

__all__ = [
    "AttentionBackend",
    "AttentionMetadata",
    "ForwardContext",
    "GraphSupport",
    "best_backend",
    "cache_groups",
    "load_backend",
]
