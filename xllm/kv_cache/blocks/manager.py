"""All cache groups together: a row gets blocks in every group or in none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xllm.core.messages.worker import AppendedBlocks, SharedPrefixes
from xllm.core.utils.arrays import BoolArray, Int32Array
from xllm.kv_cache.blocks.group import NEVER, GroupBlocks
from xllm.kv_cache.blocks.sharing import find_shared_prefixes
from xllm.kv_cache.blocks.table import Rows
from xllm.kv_cache.layout import (
    CacheDemand,
    CacheGroup,
    capacity_tokens,
    first_full_group,
    max_blocks_per_sequence,
)
from xllm.kv_cache.prefix import BlockKeys, GroupView, PrefixIdentity, PrefixMatch, match


class BlockManager:
    """Block accounting of every row in every cache group.

    Args:
        groups: the sized cache groups, in the worker's order.
        demand: bounds of the scheduler that uses it.
        secret: key of the block hashes.

    A row's life: ``allocate`` (or refusal), ``extend`` / ``extend_decodes`` as it grows,
    ``retire`` after each step whose results are known, ``free`` once no step uses it any more.
    """

    def __init__(
        self, groups: Sequence[CacheGroup], demand: CacheDemand, secret: bytes = b""
    ) -> None:
        self._groups = [
            GroupBlocks(group, demand.max_num_seqs, demand.max_model_len) for group in groups
        ]
        full = first_full_group(groups)
        self._full_group = None if full is None else self._groups[full]
        self._views = [GroupView(group.spec, group.cache) for group in self._groups]
        self._bounds = [max_blocks_per_sequence(group.spec, demand) for group in groups]
        self._secret = secret
        # Rows without keys of their own never publish; they all hold this placeholder.
        self._no_keys = self.keys(PrefixIdentity())
        self._keys = [self._no_keys] * demand.max_num_seqs
        self._publish_limit = np.zeros(demand.max_num_seqs, np.int32)
        self.demand = demand
        self.capacity_tokens = capacity_tokens(groups, demand)

    @property
    def num_groups(self) -> int:
        """Number of cache groups."""
        return len(self._groups)

    @property
    def usage(self) -> float:
        """Used share of the fullest group, 0..1; remembered but unused blocks are free."""
        shares = (group.pool.num_used / group.pool.num_usable for group in self._groups)
        return max(shares, default=0.0)  # an encoder caches nothing

    @property
    def num_free(self) -> list[int]:
        """Allocatable blocks per group."""
        return [group.pool.num_free for group in self._groups]

    def keys(self, identity: PrefixIdentity) -> BlockKeys:
        """Block keys for a new sequence."""
        return BlockKeys(identity, [group.block_size for group in self._groups], self._secret)

    def match(self, keys: BlockKeys, token_ids: Int32Array, max_tokens: int) -> PrefixMatch:
        """The longest remembered prefix of ``token_ids[:max_tokens]``. Locks nothing."""
        return match(self._views, keys, token_ids, max_tokens)

    # --- one row ---------------------------------------------------------------------------

    def allocate(
        self,
        row: int,
        found: PrefixMatch,
        *,
        step_tokens: int,
        footprint: int,
        headroom: int,
        keys: BlockKeys | None,
        publish_limit: int | None = None,
    ) -> bool:
        """Start an empty row, or refuse and change nothing.

        Args:
            found: prefix to share.
            step_tokens: tokens after the shared ones that the next step computes.
            footprint: tokens that must fit before the first one is computed. Full groups take
                all their blocks now; sliding-window groups take those of the step.
            headroom: blocks per group that must stay free for the rows that run.
            keys: block keys if full blocks are to be remembered, else None.
            publish_limit: tokens after which none are; None means no limit.
        """
        firsts = found.firsts or (0,) * len(self._groups)
        shared = found.blocks or ([],) * len(self._groups)
        for group, blocks in zip(self._groups, shared, strict=True):
            group.pool.share(blocks)
        limit = 0 if keys is None else (NEVER if publish_limit is None else publish_limit)
        for group, first, blocks in zip(self._groups, firsts, shared, strict=True):
            group.start(row, first, blocks, limit)
        if not self._fits(row, footprint, headroom):
            for group in self._groups:
                group.free(row)
            return False
        end = found.num_tokens + step_tokens
        for group in self._groups:
            group.extend(row, group.missing(row, footprint if group.spec.window is None else end))
        self._keys[row] = keys or self._no_keys
        self._publish_limit[row] = limit
        return True

    def _fits(self, row: int, footprint: int, headroom: int) -> bool:
        for group, bound in zip(self._groups, self._bounds, strict=True):
            most = bound - int(group.table.end[row] - group.table.first[row])
            need = min(group.missing(row, footprint), most)
            if need + headroom > group.pool.num_free:
                return False
        return True

    def extendable_tokens(self, row: int) -> int:
        """Tokens that the row could hold if it took every free block."""
        return min(
            (int(group.table.end[row]) + group.pool.num_free) * group.block_size
            for group in self._groups
        )

    def extend(self, row: int, num_tokens: int) -> None:
        """Let the row hold ``num_tokens``, at most ``extendable_tokens``."""
        for group in self._groups:
            group.extend(row, group.missing(row, num_tokens))

    def forget(self, row: int) -> None:
        """Drop the row's blocks from the prefix cache: their content is not to be trusted."""
        for group in self._groups:
            group.cache.forget(group.table.live(row).tolist())

    def free(self, row: int) -> None:
        """Release all blocks of a row."""
        for group in self._groups:
            group.free(row)
        self._keys[row] = self._no_keys
        self._publish_limit[row] = 0

    def reclaimable(self, row: int) -> list[int]:
        """Per group, the blocks that ``free(row)`` would make allocatable."""
        return [group.pool.num_sole(group.table.live(row)) for group in self._groups]

    # --- many rows at once -------------------------------------------------------------------

    def extend_decodes(self, rows: Rows, positions: Int32Array) -> bool:
        """Let each row hold the token at ``positions[i]``, its next; False if blocks are short.

        All-or-nothing: on False nothing has changed.
        """
        crossing = []
        for group in self._groups:
            mask = positions >= group.table.capacity[rows]
            if np.count_nonzero(mask):
                crossing.append((group, rows[mask]))
        if any(group.pool.num_free < which.size for group, which in crossing):
            return False
        for group, which in crossing:
            group.extend_each(which)
        return True

    def shortage(self, rows: Rows, positions: Int32Array) -> list[int]:
        """Per group, blocks that ``extend_decodes`` lacks (negative: left over)."""
        return [
            int(np.count_nonzero(positions >= group.table.capacity[rows])) - group.pool.num_free
            for group in self._groups
        ]

    def affordable(self, rows: Rows, positions: Int32Array) -> BoolArray:
        """(N,) the rows, preferring earlier ones, that ``extend_decodes`` can serve together."""
        mask: BoolArray = np.ones(rows.size, np.bool_)
        for group in self._groups:
            crossing = mask & (positions >= group.table.capacity[rows])
            mask &= ~crossing | (np.cumsum(crossing) <= group.pool.num_free)
        return mask

    def retire(self, rows: Rows, num_computed: Int32Array, token_ids: Int32Array) -> None:
        """Account for computed tokens whose ids are all known.

        Full blocks go to the prefix cache; blocks outside the window are released.

        Args:
            rows: (N,) live rows.
            num_computed: (N,) tokens computed by steps that have ended.
            token_ids: (max_num_seqs, max_model_len) host token table.
        """
        for group in self._groups:
            due = num_computed >= group.publish_at[rows]
            if np.count_nonzero(due):
                limits = self._publish_limit[rows[due]]
                group.publish(rows[due], num_computed[due], limits, self._keys, token_ids)
            if group.spec.window is None:
                continue
            due = num_computed >= group.release_at[rows]
            if np.count_nonzero(due):
                for row, count in zip(rows[due].tolist(), num_computed[due].tolist(), strict=True):
                    group.release_outside_window(row, count)

    def shared_prefixes(
        self, rows: Rows, *, min_rows: int, min_saved_tokens: int
    ) -> SharedPrefixes | None:
        """Rows with equal leading blocks in the first group without a window; None without any."""
        if self._full_group is None:
            return None
        return find_shared_prefixes(
            self._full_group, rows, min_rows=min_rows, min_saved_tokens=min_saved_tokens
        )

    def take_appended(self) -> tuple[AppendedBlocks, ...]:
        """Per group, what was appended since the last call."""
        return tuple(group.log.take() for group in self._groups)

    def reset_prefix_cache(self) -> None:
        """Forget every remembered block that no row uses."""
        for group in self._groups:
            group.pool.drop_unlocked()

    def check(self, num_tokens: Int32Array | None = None) -> None:
        """Assert that pools, tables and prefix caches agree in every group.

        Args:
            num_tokens: (max_num_seqs,) tokens that each row has a place for; -1: it holds nothing.
        """
        for group in self._groups:
            group.pool.check(group.table.counts(group.pool.num_usable + 1))
            group.check()
            if num_tokens is not None:
                assert (group.table.capacity >= num_tokens).all(), "a token has no block"
                assert not group.table.end[num_tokens < 0].any(), "blocks of a row that is free"
