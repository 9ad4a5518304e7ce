"""The index of one cache group: block key -> block, with LRU order of the blocks nobody uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PrefixCache:
    """Remembers full, computed blocks by key.

    A remembered block is *locked* while a sequence uses it and *unlocked* otherwise; unlocked
    blocks keep their content until ``evict`` takes the least recently used. Invariant: every
    unlocked block is in the index; a block has at most one key and a key at most one block.
    """

    def __init__(self, num_blocks: int) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._unlocked: OrderedDict[int, None] = OrderedDict()

    @property
    def num_unlocked(self) -> int:
        """Blocks that ``evict`` may take."""
        return len(self._unlocked)

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return self._key_of[block] is not None

    def lookup(self, key: bytes) -> int | None:
        """The block with this key."""
        return self._block_of.get(key)

    def insert(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Remember blocks that are in use, except where another block has the key already."""
        block_of, key_of = self._block_of, self._key_of
        for key, block in zip(keys, blocks, strict=True):
            if block_of.setdefault(key, block) == block:
                key_of[block] = key

    def lock(self, blocks: Iterable[int]) -> None:
        """Unlocked blocks are in use again."""
        for block in blocks:
            del self._unlocked[block]

    def unlock(self, blocks: Iterable[int]) -> list[int]:
        """Nobody uses the blocks any more; returns those that are not remembered at all."""
        key_of, unlocked, plain = self._key_of, self._unlocked, []
        for block in blocks:
            if key_of[block] is None:
                plain.append(block)
            else:
                unlocked[block] = None
        return plain

    def evict(self, count: int) -> list[int]:
        """Forget the ``count`` least recently used unlocked blocks and give them back."""
        evicted = []
        for _ in range(count):
            block, _none = self._unlocked.popitem(last=False)
            self._drop_key(block)
            evicted.append(block)
        return evicted

    def forget(self, blocks: Iterable[int]) -> None:
        """Drop locked blocks from the index: their content is not to be trusted."""
        for block in blocks:
            assert block not in self._unlocked
            self._drop_key(block)

    def _drop_key(self, block: int) -> None:
        key, self._key_of[block] = self._key_of[block], None
        if key is not None:
            del self._block_of[key]

    def unlocked_blocks(self) -> list[int]:
        """Unlocked blocks, the next to be evicted first."""
        return list(self._unlocked)

    def check(self) -> None:
        """Assert that both directions of the index agree and that it covers unlocked blocks."""
        assert len(self._block_of) == sum(key is not None for key in self._key_of)
        for key, block in self._block_of.items():
            assert self._key_of[block] == key
        assert all(block in self for block in self._unlocked)
