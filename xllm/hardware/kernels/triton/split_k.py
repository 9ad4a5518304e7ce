"""Sums of a product whose inputs are shared out among programs, without a second launch.

Each program stores what it has summed and arrives; the last of an output tile adds all shares, in a
fixed order, so that the result does not depend on who that was.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arrives_last(y, share_ptr, mask, counter_ptr, SHARES: tl.constexpr):
    """Store ``y`` to ``share_ptr``; whether the other shares of the tile have all been stored.

    Args:
        counter_ptr: the tile's arrivals, zero before the first and after the last.
    """
    tl.store(share_ptr, y, mask=mask)
    tl.debug_barrier()  # all stores of this program precede its arrival
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == SHARES - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def sum_of_shares(first_ptr, span, mask, SHARES: tl.constexpr):
    """The sum of all shares of a tile; ``first_ptr`` is where the first was stored, and the next is
    ``span`` float32 further."""
    y = tl.zeros(mask.shape, tl.float32)
    for share in range(SHARES):
        part = first_ptr + share * span
        y += tl.load(part, mask=mask, other=0.0, cache_modifier=".cg")
    return y
