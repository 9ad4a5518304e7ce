"""Choosing a token by temperature, min-p, top-k and top-p, without a sort.

Two launches. The first, over (groups, row), finds of every group of neighbouring tokens the largest
logit, and for rows that neither min-p nor top-k confines also the mass and the winner of the draw.
The second, a program a row, reads no more of the row than it has to:

* Top-p needs no bound. The winner of the draw among all tokens is the winner among those that top-p
  keeps if it is one of them, which the mass closer to the largest logit tells. If it is not, no
  token that far away is, and the best of the closer ones stands next.
* The k-th largest of the groups' largest is no larger than the k-th largest logit. So top-k's
  tokens lie in the groups that reach it, k of them unless logits are equal. The groups that min-p,
  or the distance of a winner, leaves are found in the same way.
* What top-k keeps is bounded by one logit. Distances from the largest are not negative, so their
  float bits order them: the bound's are found from the highest to the lowest, two at a time, by
  counting what lies before each of three candidates.

The draw is that of ``sampling``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.sampling import exponential_log

# Tokens of a group, groups of a row at most (of a larger vocabulary they are larger), and groups
# that a program reads at once.
_GROUP = 128
_MAX_GROUPS = 2048
_TILE = 16
_SURVEY_WARPS = 8
_NUM_WARPS = 16
LOG2E = tl.constexpr(1.4426950408889634)
FIRST_SHIFT = tl.constexpr(29)
NUM_PASSES = tl.constexpr(16)  # 31 bits, two at a time
# No token so far below the largest is ever drawn: the logarithms of two draws differ by 25 at most.
# In a vocabulary of a million the mass of all such is less than float32 tells from none.
HORIZON = tl.constexpr(32.0)
NO_BOUND = tl.constexpr(2147483647)
INFINITE = tl.constexpr(0x7F800000)  # bits of an infinite distance


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
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    best = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return tokens, best
    assert logits.stride(1) == 1 and vocab_size <= 1 << 20  # ``_counts`` holds whole groups
    assert inverse_temperature is None or keys is not None
    group = max(_GROUP, triton.next_power_of_2(triton.cdiv(vocab_size, _MAX_GROUPS)))
    num_groups = triton.cdiv(vocab_size, group)
    width = triton.next_power_of_2(num_groups)
    off = _off(rows, logits.device)
    shared = (
        logits,
        torch.empty((rows, 4, width), dtype=torch.float32, device=logits.device),
        off.inverse_temperature if inverse_temperature is None else inverse_temperature,
        off.log_min_p if log_min_p is None else log_min_p,
        off.top_k if top_k is None else top_k,
        off.top_p if top_p is None else top_p,
        off.keys if keys is None else keys,
        vocab_size,
        num_groups,
        logits.stride(0),
        0 if keys is None else keys.stride(0),
    )
    constants = {"WIDTH": width, "GROUP": group, "TILE": _TILE, **pdl_options(logits.device)}
    grid = (triton.cdiv(num_groups, _TILE), rows)
    _survey_kernel[grid](*shared, num_warps=_SURVEY_WARPS, **constants)
    _choose_kernel[(rows,)](*shared, tokens, best, num_warps=_NUM_WARPS, **constants)
    return tokens, best


class _Off(NamedTuple):
    """Arguments of rows that use nothing: greedy, and keeping every token."""

    inverse_temperature: Tensor
    log_min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    keys: Tensor


_off_values: dict[torch.device, _Off] = {}  # for the most rows there were


def _off(rows: int, device: torch.device) -> _Off:
    """What stands for arguments that are None: a row skips what its values turn off, so one kernel
    serves every mixture. Each would be one more to compile before the first request."""
    off = _off_values.get(device)
    if off is None or len(off.top_p) < rows:
        off = _off_values[device] = _Off(
            torch.zeros(rows, device=device),
            torch.full((rows,), -torch.inf, device=device),
            torch.full((rows,), torch.iinfo(torch.int64).max, device=device),
            torch.ones(rows, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
        )
    return off


@triton.jit
def _confined(log_min_p, top_k, vocab_size):
    """Whether min-p or top-k leaves out tokens, so that the winner of the row may be another."""
    return (log_min_p > -float("inf")) | (top_k < vocab_size)


@triton.jit(do_not_specialize=["keys_stride"])
def _survey_kernel(
    logits_ptr,  # (M, V)
    # (M, 4, WIDTH), of each group: its largest logit, NaN where it has a NaN; the best score of the
    # draw; whose it is; its mass, that of the group's largest logit being 1
    groups_ptr,
    inverse_temperature_ptr,  # (M,)
    log_min_p_ptr,  # (M,)
    top_k_ptr,  # (M,) int64
    top_p_ptr,  # (M,)
    keys_ptr,  # (2, M) int32
    vocab_size,
    num_groups,
    logits_stride,
    keys_stride,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    groups = tl.program_id(0) * TILE + tl.arange(0, TILE)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    source = logits_ptr + row * logits_stride + columns
    x = tl.load(source, mask=columns < vocab_size, other=-float("inf")).to(tl.float32)
    bad = tl.max((x != x).to(tl.int32), axis=1) > 0
    peaks = tl.max(x, axis=1)
    out = groups_ptr + row * 4 * WIDTH + groups
    there = groups < num_groups
    tl.store(out, tl.where(bad, float("nan"), peaks), mask=there)
    inverse_temperature = tl.load(inverse_temperature_ptr + row)
    confined = _confined(tl.load(log_min_p_ptr + row), tl.load(top_k_ptr + row), vocab_size)
    if (inverse_temperature <= 0.0) | confined:
        return
    key0 = tl.load(keys_ptr + row)
    key1 = tl.load(keys_ptr + keys_stride + row)
    score = x * inverse_temperature - exponential_log(key0, key1, columns)
    top = tl.max(score, axis=1)
    winners = tl.min(tl.where(score == top[:, None], columns, NO_BOUND), axis=1)
    tl.store(out + WIDTH, top, mask=there)
    tl.store(out + 2 * WIDTH, winners.to(tl.float32, bitcast=True), mask=there)
    if tl.load(top_p_ptr + row) < 1.0:
        base = tl.where(peaks > -float("inf"), peaks, 0.0)
        weight = tl.exp2((x - base[:, None]) * inverse_temperature * LOG2E)
        tl.store(out + 3 * WIDTH, tl.sum(weight, axis=1), mask=there)


@triton.jit
def _counts(bits, bound, shift):
    """How many ``bits`` lie below each of three candidates above ``bound``, 21 bits for each."""
    first = (bits < bound + (1 << shift)).to(tl.int64)
    second = (bits < bound + (2 << shift)).to(tl.int64)
    third = (bits < bound + (3 << shift)).to(tl.int64)
    return first + (second << 21) + (third << 42)


@triton.jit
def _raise(bound, closer, counts, shift, k):
    """The largest candidate below which fewer than ``k`` lie, and how many do."""
    first = (counts & 0x1FFFFF).to(tl.int32)
    second = ((counts >> 21) & 0x1FFFFF).to(tl.int32)
    third = (counts >> 42).to(tl.int32)
    chosen = (first < k).to(tl.int32) + (second < k).to(tl.int32) + (third < k).to(tl.int32)
    found = tl.where(chosen == 3, third, tl.where(chosen == 2, second, first))
    return bound + (chosen << shift), tl.where(chosen == 0, closer, found)


@triton.jit
def _kth_of(bits, k):
    """The k-th smallest of ``bits``, of which there are at least k, and how many are smaller."""
    bound = tl.zeros([], tl.int32)
    closer = tl.zeros([], tl.int32)
    for number in range(NUM_PASSES):
        shift = tl.maximum(FIRST_SHIFT - 2 * number, 0)
        counts = tl.sum(_counts(bits, bound, shift), axis=0)
        bound, closer = _raise(bound, closer, counts, shift, k)
    return bound, closer


@triton.jit
def _tile(
    logits_row, list_row, at, num_listed, vocab_size, best, inverse_temperature, most,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Tokens of the groups listed from ``at``, and how far below the largest logit theirs lie,
    scaled; infinite where they are out."""
    lane = tl.arange(0, TILE * GROUP)
    place = at + lane // GROUP
    # Written by other threads of this program.
    group = tl.load(list_row + place, mask=place < num_listed, other=0, cache_modifier=".cg")
    columns = group * GROUP + lane % GROUP
    inside = (place < num_listed) & (columns < vocab_size)
    x = tl.load(logits_row + columns, mask=inside, other=-float("inf")).to(tl.float32)
    d = (best - x) * inverse_temperature
    return columns, tl.where(inside & (d <= most), d, float("inf"))


@triton.jit
def _kth(
    logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most, k,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The distance, as bits, of the k-th token of those listed, and how many are closer."""
    bound = tl.zeros([], tl.int32)
    closer = tl.zeros([], tl.int32)
    if num_listed <= TILE:  # all of them fit into registers
        _, d = _tile(
            logits_row, list_row, 0, num_listed, vocab_size, best, inverse_temperature, most,
            GROUP, TILE,
        )  # fmt: skip
        bound, closer = _kth_of(d.to(tl.int32, bitcast=True), k)
    else:
        for number in range(NUM_PASSES):
            shift = tl.maximum(FIRST_SHIFT - 2 * number, 0)
            counts = tl.zeros([TILE * GROUP], tl.int64)
            for at in range(0, num_listed, TILE):
                _, d = _tile(
                    logits_row, list_row, at, num_listed, vocab_size, best, inverse_temperature,
                    most, GROUP, TILE,
                )  # fmt: skip
                counts += _counts(d.to(tl.int32, bitcast=True), bound, shift)
            bound, closer = _raise(bound, closer, tl.sum(counts, axis=0), shift, k)
    return bound, closer


@triton.jit
def _mass(
    logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most, cut,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The mass of the listed tokens at distances of bits below ``cut``, that of the largest logit
    being 1."""
    mass = tl.zeros([TILE * GROUP], tl.float32)
    for at in range(0, num_listed, TILE):
        _, d = _tile(
            logits_row, list_row, at, num_listed, vocab_size, best, inverse_temperature, most,
            GROUP, TILE,
        )  # fmt: skip
        closer = d.to(tl.int32, bitcast=True) < cut
        mass += tl.where(closer, tl.exp2(d * -LOG2E), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def _race(
    logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most, key0, key1, cut,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Who wins the draw among the listed tokens at distances of bits below ``cut``; its bits."""
    score = tl.full([TILE * GROUP], -float("inf"), tl.float32)
    token = tl.zeros([TILE * GROUP], tl.int32)
    bits = tl.zeros([TILE * GROUP], tl.int32)
    for at in range(0, num_listed, TILE):
        columns, d = _tile(
            logits_row, list_row, at, num_listed, vocab_size, best, inverse_temperature, most,
            GROUP, TILE,
        )  # fmt: skip
        distance = d.to(tl.int32, bitcast=True)
        drawn = -d - exponential_log(key0, key1, columns)
        better = (distance < cut) & (drawn > score)
        score = tl.where(better, drawn, score)
        token = tl.where(better, columns, token)
        bits = tl.where(better, distance, bits)
    first = score == tl.max(score, axis=0)
    winner = tl.min(tl.where(first, token, NO_BOUND), axis=0)
    return winner, tl.max(tl.where(first & (token == winner), bits, 0), axis=0)


@triton.jit(do_not_specialize=["logits_stride", "keys_stride"])
def _choose_kernel(
    logits_ptr,  # (M, V)
    groups_ptr,  # (M, 4, WIDTH), see above; the last is then the list of groups that are read
    inverse_temperature_ptr,  # (M,)
    log_min_p_ptr,  # (M,)
    top_k_ptr,  # (M,) int64
    top_p_ptr,  # (M,)
    keys_ptr,  # (2, M) int32
    vocab_size,
    num_groups,
    logits_stride,
    keys_stride,
    tokens_ptr,  # (M,) int64
    best_ptr,  # (M,)
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    logits_row = logits_ptr + row * logits_stride
    group = tl.arange(0, WIDTH)
    there = group < num_groups
    source = groups_ptr + row * 4 * WIDTH + group
    peaks = tl.load(source, mask=there, other=-float("inf"))
    bad = tl.max((peaks != peaks).to(tl.int32), axis=0) > 0
    peaks = tl.where(peaks == peaks, peaks, -float("inf"))
    best = tl.max(peaks, axis=0)
    tl.store(best_ptr + row, tl.where(bad, float("nan"), best))
    home = tl.min(tl.where(peaks == best, group, WIDTH), axis=0)
    columns = home * GROUP + tl.arange(0, GROUP)
    x = tl.load(logits_row + columns, mask=columns < vocab_size, other=-float("inf"))
    first = tl.min(tl.where(x.to(tl.float32) == best, columns, NO_BOUND), axis=0)
    tl.store(tokens_ptr + row, tl.minimum(first, vocab_size - 1).to(tl.int64))

    inverse_temperature = tl.load(inverse_temperature_ptr + row)
    log_min_p = tl.load(log_min_p_ptr + row)
    top_k = tl.minimum(tl.load(top_k_ptr + row), vocab_size).to(tl.int32)
    top_p = tl.load(top_p_ptr + row)
    broken = bad | (best == -float("inf")) | (best == float("inf"))
    if (inverse_temperature <= 0.0) | (top_k == 1) | broken:
        return
    distances = (best - peaks) * inverse_temperature
    most = tl.minimum(-log_min_p, HORIZON)
    confined = _confined(log_min_p, top_k, vocab_size)
    token = first
    bits = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float32)
    if confined:
        reach = most
        if top_k < num_groups:
            kth, _ = _kth_of(distances.to(tl.int32, bitcast=True), top_k)
            reach = tl.minimum(most, kth.to(tl.float32, bitcast=True))
    else:
        score = tl.load(source + WIDTH, mask=there, other=-float("inf"))
        whose = tl.load(source + 2 * WIDTH, mask=there, other=0.0).to(tl.int32, bitcast=True)
        token = tl.min(tl.where(score == tl.max(score, axis=0), whose, NO_BOUND), axis=0)
        if top_p >= 1.0:
            tl.store(tokens_ptr + row, token.to(tl.int64))
            return
        reach = (best - tl.load(logits_row + token).to(tl.float32)) * inverse_temperature
        bits = reach.to(tl.int32, bitcast=True)
        weight = tl.load(source + 3 * WIDTH, mask=there, other=0.0)
        mass = tl.sum(weight * tl.exp2(distances * -LOG2E), axis=0)

    listed = distances <= reach
    num_listed = tl.sum(listed.to(tl.int32), axis=0)
    place = tl.cumsum(listed.to(tl.int32), axis=0) - 1
    list_row = (groups_ptr + row * 4 * WIDTH + 3 * WIDTH).to(tl.pointer_type(tl.int32))
    tl.debug_barrier()  # every mass has been read
    tl.store(list_row + place, group, mask=listed)
    tl.debug_barrier()
    key0 = tl.load(keys_ptr + row)
    key1 = tl.load(keys_ptr + keys_stride + row)
    if confined:
        bound = tl.full([], NO_BOUND, tl.int32)
        room = tl.zeros([], tl.int32)  # tokens at the bound that top-k's mass counts
        if (top_k < vocab_size) & (top_k < num_listed * GROUP):
            bound, closer = _kth(
                logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most,
                top_k, GROUP, TILE,
            )  # fmt: skip
            room = top_k - closer
        token, bits = _race(
            logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most,
            key0, key1, tl.minimum(bound, INFINITE - 1) + 1, GROUP, TILE,
        )  # fmt: skip
        if top_p < 1.0:
            mass = _mass(
                logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most,
                bound, GROUP, TILE,
            )  # fmt: skip
            if room > 0:
                mass += room * tl.exp2(bound.to(tl.float32, bitcast=True) * -LOG2E)
    if top_p < 1.0:
        limit = top_p * mass
        if limit <= 1.0:  # the largest alone, whose mass is 1, is enough
            return
        before = _mass(
            logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most, bits,
            GROUP, TILE,
        )  # fmt: skip
        while before >= limit:
            token, bits = _race(
                logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most,
                key0, key1, bits, GROUP, TILE,
            )  # fmt: skip
            before = _mass(
                logits_row, list_row, num_listed, vocab_size, best, inverse_temperature, most, bits,
                GROUP, TILE,
            )  # fmt: skip
    tl.store(tokens_ptr + row, token.to(tl.int64))
