"""Physical memory of the KV cache: one tensor per layer.

Owns allocation and the per-layer views; knows no block's owner and no attention.
Public: ``CacheStorage`` and ``zeros_on_demand``.
"""

from xllm.kv_cache.storage.physical import CacheStorage, KVLayoutPolicy
from xllm.kv_cache.storage.zeros import zeros_on_demand

__all__ = ["CacheStorage", "KVLayoutPolicy", "zeros_on_demand"]
