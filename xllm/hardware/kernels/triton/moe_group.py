"""Pairs of a token and an expert, sorted by expert into blocks of a fixed height.

Pair ``p`` is choice ``p % top_k`` of token ``p // top_k``. A block is up to ``block_m`` pairs of
one expert. How many blocks there are is known on the device alone; the bound comes from shapes, so
a graph may hold the launches that walk them.
"""

from __future__ import annotations

import dataclasses

import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import allow_consumers, pdl_options, wait_for_producers

_MAX_RUN = 16384  # pairs that a program looks at together


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """S blocks at most, in the order of their experts."""

    pairs: Tensor  # (S * block_m,) int32: ascending per expert; undefined beyond a block's number
    table: Tensor  # (S, 2) int32: expert and number of pairs; undefined beyond the last block
    number: Tensor  # (1,) int32: blocks
    # (S + 2,) int32: zeros, up to the number of blocks and in the last two places. For the kernel
    # that walks the blocks; zeroed here, they do not depend on how an earlier launch ended.
    counters: Tensor
    block_m: int

    @property
    def bound(self) -> int:
        """S: one incomplete block per expert beside the full ones."""
        return self.table.shape[0]


def group_pairs(experts: Tensor, num_experts: int, block_m: int) -> Blocks:
    """Blocks of ``experts`` (T, top_k) int32. No atomics: the same blocks every time."""
    pairs = experts.numel()
    bound = min(pairs, pairs // block_m + num_experts)
    blocks = Blocks(
        experts.new_empty(bound * block_m),
        experts.new_empty((bound, 2)),
        experts.new_empty(1),
        experts.new_empty(bound + 2),
        block_m,
    )
    run = min(max(triton.next_power_of_2(pairs), 128), _MAX_RUN)
    _group_kernel[(num_experts,)](
        experts,
        blocks.pairs,
        blocks.table,
        blocks.number,
        blocks.counters,
        pairs,
        num_experts,
        bound,
        BLOCK_M=block_m,
        RUN=run,
        E_BLOCK=triton.next_power_of_2(num_experts),
        T_BLOCK=64,
        num_warps=min(max(run // 1024, 4), 16),
        **pdl_options(experts.device),
    )
    return blocks


@triton.jit(do_not_specialize=["num_pairs", "bound"])
def _group_kernel(
    experts_ptr,  # (P,) int32
    pairs_ptr,  # (S * BLOCK_M,) int32
    table_ptr,  # (S, 2) int32
    number_ptr,  # (1,) int32
    counters_ptr,  # (S + 2,) int32
    num_pairs,
    num_experts,
    bound,  # S
    BLOCK_M: tl.constexpr,
    RUN: tl.constexpr,
    E_BLOCK: tl.constexpr,
    T_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per expert. Each counts all pairs, which takes less than a second launch."""
    expert = tl.program_id(0)
    each = tl.arange(0, E_BLOCK)
    in_run = tl.arange(0, RUN)
    allow_consumers(PDL)  # whose first read is behind their wait
    wait_for_producers(PDL)
    counts = tl.zeros([E_BLOCK], tl.int32)
    for start in range(0, num_pairs, RUN):
        pair = start + in_run
        chosen = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=0)
        counts += tl.histogram(chosen, E_BLOCK, mask=pair < num_pairs)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(each < expert, blocks, 0), axis=0)
    count = tl.sum(tl.where(each == expert, counts, 0), axis=0)

    place = first * BLOCK_M
    for start in range(0, num_pairs, RUN):
        pair = start + in_run
        found = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=-1) == expert
        rank = tl.cumsum(found.to(tl.int32), axis=0)
        tl.store(pairs_ptr + place + rank - 1, pair, mask=found)
        place += tl.sum(found.to(tl.int32), axis=0)
    for start in range(0, count, BLOCK_M * T_BLOCK):
        left = count - start - tl.arange(0, T_BLOCK) * BLOCK_M
        block = first + start // BLOCK_M + tl.arange(0, T_BLOCK)
        tl.store(table_ptr + 2 * block, tl.zeros([T_BLOCK], tl.int32) + expert, mask=left > 0)
        tl.store(table_ptr + 2 * block + 1, tl.minimum(left, BLOCK_M), mask=left > 0)
        tl.store(counters_ptr + block, tl.zeros([T_BLOCK], tl.int32), mask=left > 0)
    if expert == num_experts - 1:
        tl.store(number_ptr, tl.sum(blocks, axis=0))
        tl.store(counters_ptr + bound + tl.arange(0, 2), tl.zeros([2], tl.int32))
