"""Prefix sharing: which full blocks hold which prefix, and what to forget first.
Owns block keys, the key-to-block index and the LRU of unused blocks; hands out no blocks.
Public: the names below."""

from xllm.kv_cache.prefix.cache import PrefixCache
from xllm.kv_cache.prefix.keys import BlockKeys, MediaSpan, PrefixIdentity
from xllm.kv_cache.prefix.match import NO_MATCH, GroupView, PrefixMatch, match

__all__ = [
    "NO_MATCH",
    "BlockKeys",
    "GroupView",
    "MediaSpan",
    "PrefixCache",
    "PrefixIdentity",
    "PrefixMatch",
    "match",
]
