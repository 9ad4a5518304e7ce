"""The longest prefix that every cache group still holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from xllm.core.utils.arrays import Int32Array
from xllm.kv_cache.layout import CacheSpec
from xllm.kv_cache.prefix.cache import PrefixCache
from xllm.kv_cache.prefix.keys import BlockKeys


@dataclasses.dataclass(frozen=True, slots=True)
class GroupView:
    """One cache group as matching sees it."""

    spec: CacheSpec
    cache: PrefixCache


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixMatch:
    """``num_tokens`` tokens need no computing.

    Group ``g`` reuses ``blocks[g]`` at positions ``firsts[g] ..`` of the block table; what lies
    before is outside the window of every token still to come.
    """

    num_tokens: int = 0
    firsts: tuple[int, ...] = ()
    blocks: tuple[list[int], ...] = ()


NO_MATCH = PrefixMatch()


def first_visible_block(spec: CacheSpec, num_computed: int) -> int:
    """First block that a query at position ``num_computed`` or later can see."""
    if spec.window is None:
        return 0
    return max(0, num_computed - spec.window + 1) // spec.block_size


def match(
    groups: Sequence[GroupView], keys: BlockKeys, token_ids: Int32Array, max_tokens: int
) -> PrefixMatch:
    """Find the longest cached prefix of at most ``max_tokens`` tokens that is valid in all groups.

    A full group must hold every block of it; a sliding-window group those that the next token can
    see. Locks nothing.
    """
    stride = math.lcm(*(group.spec.block_size for group in groups))
    length = max_tokens // stride * stride
    found: list[list[int | None]] = []
    for group in groups:
        size = group.spec.block_size
        count = length // size
        chain = keys.upto(count, size, token_ids)
        blocks: list[int | None] = []
        for index in range(count):
            block = group.cache.lookup(chain[index + 1])
            if block is None and group.spec.window is None:
                break
            blocks.append(block)
        found.append(blocks)
        length = min(length, len(blocks) * size // stride * stride)
    while True:
        covered = (_covered(g.spec, b, length) for g, b in zip(groups, found, strict=True))
        shorter = min(covered, default=length) // stride * stride
        if shorter == length:
            break
        length = shorter
    if not length:
        return NO_MATCH
    firsts = tuple(first_visible_block(group.spec, length) for group in groups)
    reused = tuple(
        [block for block in blocks[first : length // group.spec.block_size] if block is not None]
        for group, blocks, first in zip(groups, found, firsts, strict=True)
    )
    return PrefixMatch(length, firsts, reused)


def _covered(spec: CacheSpec, blocks: list[int | None], length: int) -> int:
    """``length`` if every block is there that the token after it sees, else the tokens before the
    last one that is not: anything between sees that one too."""
    if spec.window is not None:
        first = first_visible_block(spec, length)
        for index in range(length // spec.block_size - 1, first - 1, -1):
            if blocks[index] is None:
                return index * spec.block_size
    return length
