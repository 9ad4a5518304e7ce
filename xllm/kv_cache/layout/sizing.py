"""How many blocks of each group fit a budget, and what that holds.

A full-attention group needs a block for every live token. A sliding-window group needs only what
lies in the windows and in the steps in flight, so beyond that bound more blocks buy nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from xllm.core.config import SchedulerConfig
from xllm.kv_cache.layout.spec import CacheGroup, CacheSpec

# Steps whose tokens may be outside every window and yet not released: one runs, one is queued.
_STEPS_IN_FLIGHT = 2


class CacheDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a scheduler will ever hold at once."""

    max_num_seqs: int
    max_step_tokens: int  # tokens of one step over all sequences (max_num_batched_tokens)
    max_model_len: int  # tokens of one sequence

    @classmethod
    def of(cls, config: SchedulerConfig, max_model_len: int) -> CacheDemand:
        """What a scheduler with this config holds; its step has a size."""
        return cls(
            max_num_seqs=config.max_num_seqs,
            max_step_tokens=config.max_num_batched_tokens,
            max_model_len=max_model_len,
        )


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens``."""
    return -(-num_tokens // block_size)


def max_blocks_per_sequence(spec: CacheSpec, demand: CacheDemand) -> int:
    """Most blocks that one sequence of ``max_model_len`` tokens holds at once."""
    whole = blocks_for(demand.max_model_len, spec.block_size)
    if spec.window is None:
        return whole
    in_flight = _STEPS_IN_FLIGHT * demand.max_step_tokens
    return min(whole, blocks_for(spec.window - 1 + in_flight, spec.block_size) + 1)


def _useful_blocks(spec: CacheSpec, demand: CacheDemand) -> int | None:
    """Blocks beyond which a group is never short; None where there is no such bound."""
    if spec.window is None:
        return None
    in_flight = blocks_for(_STEPS_IN_FLIGHT * demand.max_step_tokens, spec.block_size)
    return demand.max_num_seqs * _window_blocks(spec.window, spec.block_size) + in_flight


def _window_blocks(window: int, block_size: int) -> int:
    """Most blocks that a sequence's window touches, with the token being written."""
    return blocks_for(window - 1, block_size) + 2


def fit_blocks_to_tokens(
    groups: Sequence[CacheGroup], num_tokens: int, demand: CacheDemand
) -> tuple[CacheGroup, ...]:
    """Size the groups to hold ``num_tokens`` tokens, block 0 not counted.

    Raises:
        ValueError: ``num_tokens`` is below 1.
    """
    if num_tokens < 1:
        raise ValueError(f"num_kv_tokens must be at least 1, got {num_tokens}")
    sized = []
    for group in groups:
        count = blocks_for(num_tokens, group.spec.block_size)
        bound = _useful_blocks(group.spec, demand)
        count = count if bound is None else min(count, bound)
        sized.append(msgspec.structs.replace(group, num_blocks=count + 1))
    return tuple(sized)


def fit_blocks_to_bytes(
    groups: Sequence[CacheGroup], budget_bytes: int, demand: CacheDemand
) -> tuple[CacheGroup, ...]:
    """Size the groups to hold as many tokens as ``budget_bytes`` allows.

    Raises:
        ValueError: not one block of every group fits.
    """
    step = max(group.spec.block_size for group in groups)

    def size(steps: int) -> int:
        return total_bytes(fit_blocks_to_tokens(groups, steps * step, demand))

    if (need := size(1)) > budget_bytes:
        raise ValueError(
            f"max_cache_size: {budget_bytes} bytes hold no KV block; at least {need} are needed"
        )
    low, high = 1, 2
    # Groups that all have a window stop growing; any other outgrows the budget.
    while size(low) < size(high) <= budget_bytes:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= budget_bytes else (low, middle)
    return fit_blocks_to_tokens(groups, low * step, demand)


def total_bytes(groups: Sequence[CacheGroup]) -> int:
    """Bytes of all blocks of all groups, padding blocks included."""
    return sum(group.num_blocks * group.bytes_per_block for group in groups)


def capacity_tokens(groups: Sequence[CacheGroup], demand: CacheDemand) -> int:
    """Most tokens that one sequence can hold when it has the cache to itself.

    At most ``max_model_len``: a sliding-window group with room for a window and the steps in
    flight sets no limit of its own.
    """
    limits = [demand.max_model_len]
    for group in groups:
        usable = group.num_blocks - 1
        if usable < max_blocks_per_sequence(group.spec, demand):
            limits.append(usable * group.spec.block_size)
    return min(limits)


def max_concurrency(groups: Sequence[CacheGroup], demand: CacheDemand) -> float:
    """Sequences of ``max_model_len`` tokens that fit at once."""
    return min(
        (_concurrency(group, demand) for group in groups),
        default=float(demand.max_num_seqs),  # nothing is cached
    )


def _concurrency(group: CacheGroup, demand: CacheDemand) -> float:
    spec, usable = group.spec, group.num_blocks - 1
    whole = usable / blocks_for(demand.max_model_len, spec.block_size)
    if spec.window is None:
        return whole
    # The steps in flight are the sequences' together: they count once, windows count for each.
    in_flight = blocks_for(_STEPS_IN_FLIGHT * demand.max_step_tokens, spec.block_size)
    return max(whole, (usable - in_flight) / _window_blocks(spec.window, spec.block_size))
