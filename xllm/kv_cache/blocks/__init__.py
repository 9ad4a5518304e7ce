"""Block accounting: who holds which block of which cache group, on the host, in NumPy columns.
Owns the pools, reference counts and block tables; never touches a device, knows no requests.
Public: ``BlockManager``, ``BlockPool``, ``BlockTable``."""

from xllm.kv_cache.blocks.manager import BlockManager
from xllm.kv_cache.blocks.pool import BlockPool
from xllm.kv_cache.blocks.table import BlockTable

__all__ = ["BlockManager", "BlockPool", "BlockTable"]
