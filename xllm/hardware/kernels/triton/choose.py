"""Choosing a token by temperature, min-p, top-k and top-p, in one launch and without a sort.

Grid: (row,). What top-k and top-p keep is bounded by one logit each. Distances from the largest
logit are not negative, so their float bits order them: a bound is found from the highest bits to
the lowest, three bits in a pass over the row, by counting (or weighing) what lies before each of
seven candidates. The draw is that of ``sampling``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.sampling import exponential_log

_BLOCK = 2048
_NUM_WARPS = 16
# Below this a program per row leaves most of the device idle, and sorting is faster (H200).
_FEWEST_FILTERED_ROWS = 32
LOG2E = tl.constexpr(1.4426950408889634)
FIRST_SHIFT = tl.constexpr(28)
NUM_PASSES = tl.constexpr(11)  # 31 bits, three at a time


def choose_tokens(
    logits: Tensor,
    inverse_temperature: Tensor | None = None,
    log_min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.choose_tokens``."""
    rows, vocab_size = logits.shape
    filtered = top_k is not None or top_p is not None
    if filtered and rows < _FEWEST_FILTERED_ROWS:
        return reference.choose_tokens(logits, inverse_temperature, log_min_p, top_k, top_p, keys)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    best = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        if log_min_p is not None or filtered:
            log_min_p, top_k, top_p = _filters(log_min_p, top_k, top_p, rows, logits.device)
        assert logits.stride(1) == 1 and (inverse_temperature is None or keys is not None)
        _choose_kernel[(rows,)](
            logits,
            inverse_temperature,
            log_min_p,
            top_k,
            top_p,
            keys,
            tokens,
            best,
            vocab_size,
            logits.stride(0),
            0 if keys is None else keys.stride(0),
            BLOCK=_BLOCK,
            num_warps=_NUM_WARPS,
            **pdl_options(logits.device),
        )
    return tokens, best


def _filters(
    log_min_p: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    rows: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """All three, those that are None as values that keep every token.

    A row skips what its values turn off, so one kernel serves every mixture: seven would be too
    many to compile before the first request, and one left to the request that needs it makes that
    wait for seconds.
    """
    off = _off.get(device)
    if off is None or len(off[0]) < rows:
        off = _off[device] = (
            torch.full((rows,), -torch.inf, device=device),
            torch.full((rows,), torch.iinfo(torch.int64).max, device=device),
            torch.ones(rows, device=device),
        )
    return (
        off[0][:rows] if log_min_p is None else log_min_p,
        off[1][:rows] if top_k is None else top_k,
        off[2][:rows] if top_p is None else top_p,
    )


_off: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}  # for the most rows there were


@triton.jit
def _distances(logits_row, columns, vocab_size, best, inverse_temperature, most):
    """How far below the largest the logits lie, scaled; infinite where they are out."""
    x = tl.load(logits_row + columns, mask=columns < vocab_size, other=-float("inf"))
    d = (best - x.to(tl.float32)) * inverse_temperature
    return tl.where(d > most, float("inf"), d)


@triton.jit
def _bound(
    logits_row,
    vocab_size,
    best,
    inverse_temperature,
    most,
    target,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest bits b such that less than ``target`` lies at distances of bits below b, and
    what lies there: logits, or their mass."""
    lane = tl.arange(0, BLOCK)
    step = tl.arange(0, 8)
    bound = tl.zeros([], tl.int32)
    below = tl.zeros([], tl.float32)
    for number in range(NUM_PASSES):
        shift = tl.maximum(FIRST_SHIFT - 3 * number, 0)
        candidates = bound + (step << shift)
        acc = tl.zeros([BLOCK, 8], tl.float32)
        for at in range(0, vocab_size, BLOCK):
            d = _distances(logits_row, at + lane, vocab_size, best, inverse_temperature, most)
            if BY_MASS:
                weight = tl.exp2(d * -LOG2E)
            else:
                weight = tl.full([BLOCK], 1.0, tl.float32)
            before = d.to(tl.int32, bitcast=True)[:, None] < candidates[None, :]
            acc += tl.where(before, weight[:, None], 0.0)
        found = tl.sum(acc, axis=0)
        chosen = tl.sum(((found < target) & (step > 0)).to(tl.int32), axis=0)
        below = tl.sum(tl.where(step == chosen, found, 0.0), axis=0)
        bound += chosen << shift
    return bound, below


@triton.jit
def _mass(logits_row, vocab_size, best, inverse_temperature, most, bound, BLOCK: tl.constexpr):
    """Sum of the weights of the logits at distances of bits below ``bound``."""
    lane = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for at in range(0, vocab_size, BLOCK):
        d = _distances(logits_row, at + lane, vocab_size, best, inverse_temperature, most)
        inside = d.to(tl.int32, bitcast=True) < bound
        acc += tl.where(inside, tl.exp2(d * -LOG2E), 0.0)
    return tl.sum(acc, axis=0)


@triton.jit(do_not_specialize=["keys_stride"])
def _choose_kernel(
    logits_ptr,  # (M, V)
    inverse_temperature_ptr,  # (M,) or None
    log_min_p_ptr,  # (M,) or None
    top_k_ptr,  # (M,) int64 or None
    top_p_ptr,  # (M,) or None
    keys_ptr,  # (2, M) int32 or None
    tokens_ptr,  # (M,) int64
    best_ptr,  # (M,)
    vocab_size,
    logits_stride,
    keys_stride,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    logits_row = logits_ptr + row.to(tl.int64) * logits_stride
    lane = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], -float("inf"), tl.float32)
    token = lane
    bad = tl.zeros([BLOCK], tl.int32)
    for at in range(0, vocab_size, BLOCK):
        columns = at + lane
        x = tl.load(logits_row + columns, mask=columns < vocab_size, other=-float("inf"))
        x = x.to(tl.float32)
        bad |= (x != x).to(tl.int32)
        better = x > peak
        peak = tl.where(better, x, peak)
        token = tl.where(better, columns, token)
    best = tl.max(peak, axis=0)
    first = tl.min(tl.where(peak == best, token, 2147483647), axis=0)
    tl.store(best_ptr + row, tl.where(tl.max(bad, axis=0) > 0, float("nan"), best))
    tl.store(tokens_ptr + row, tl.minimum(first, vocab_size - 1).to(tl.int64))
    inverse_temperature = tl.full([], 0.0, tl.float32)
    key0 = tl.full([], 0, tl.int32)
    key1 = tl.full([], 0, tl.int32)
    if inverse_temperature_ptr is not None:
        inverse_temperature = tl.load(inverse_temperature_ptr + row)
        key0 = tl.load(keys_ptr + row)
        key1 = tl.load(keys_ptr + keys_stride + row)
    if inverse_temperature <= 0.0:
        return
    most = float("inf")
    if log_min_p_ptr is not None:
        most = -tl.load(log_min_p_ptr + row)
    bound = tl.full([], 2147483647, tl.int32)
    room = tl.zeros([], tl.float32)  # logits at top-k's bound that it keeps
    if top_k_ptr is not None:
        top_k = tl.load(top_k_ptr + row)
        if top_k == 1:
            return
        if top_k < vocab_size:
            wanted = top_k.to(tl.float32)
            bound, closer = _bound(
                logits_row, vocab_size, best, inverse_temperature, most, wanted, False, BLOCK
            )
            room = wanted - closer
    if top_p_ptr is not None:
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            mass = _mass(logits_row, vocab_size, best, inverse_temperature, most, bound, BLOCK)
            if room > 0.0:
                mass += room * tl.exp2(bound.to(tl.float32, bitcast=True) * -LOG2E)
            limit = top_p * mass
            if limit <= 1.0:  # the largest alone, whose mass is 1, is enough
                return
            nucleus, _ = _bound(
                logits_row, vocab_size, best, inverse_temperature, most, limit, True, BLOCK
            )
            bound = tl.minimum(bound, nucleus)

    score = tl.full([BLOCK], -float("inf"), tl.float32)
    token = lane
    for at in range(0, vocab_size, BLOCK):
        columns = at + lane
        d = _distances(logits_row, columns, vocab_size, best, inverse_temperature, most)
        drawn = -d - exponential_log(key0, key1, columns)
        kept = d.to(tl.int32, bitcast=True) <= bound
        drawn = tl.where(kept, drawn, -float("inf"))
        better = drawn > score
        score = tl.where(better, drawn, score)
        token = tl.where(better, columns, token)
    top = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == top, token, 2147483647), axis=0)
    tl.store(tokens_ptr + row, tl.minimum(winner, vocab_size - 1).to(tl.int64))
