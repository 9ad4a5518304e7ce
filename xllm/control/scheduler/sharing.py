"""Finds what decoding rows share, once per change of the rows."""

from __future__ import annotations

from xllm.control.scheduler.table import Rows
from xllm.core.messages.worker import SharedPrefixes
from xllm.kv_cache.blocks import BlockManager

# Below this a separate pass over the prefix costs more than it saves (H200, 8 KV heads).
MIN_ROWS = 8
MIN_SAVED_TOKENS = 16384


class SharedPrefixFinder:
    """Remembers the last answer: a steady step asks and nothing is searched."""

    def __init__(self, blocks: BlockManager, enabled: bool) -> None:
        self._blocks = blocks
        self._enabled = enabled
        self._key: tuple[int, bytes] = (-1, b"")
        self._found: SharedPrefixes | None = None

    def find(self, rows: Rows, version: int) -> SharedPrefixes | None:
        """What ``rows`` share.

        Args:
            rows: (N,) rows that decode.
            version: changes whenever a row begins or ceases to decode.
        """
        if not self._enabled or rows.size < MIN_ROWS:
            return None
        key = (version, rows.tobytes())
        if key != self._key:
            self._key = key
            self._found = self._blocks.shared_prefixes(
                rows, min_rows=MIN_ROWS, min_saved_tokens=MIN_SAVED_TOKENS
            )
        return self._found
