"""Greedy and Gumbel-max sampling with token feedback, in one launch.

Grid: (vocabulary share, row). The last share of a row to arrive merges, so nothing is launched
after it. The draw is ``argmax(logit / T - log E)`` with E the unit exponential draws of
``execution.sampling.rng``, recomputed here from the same keys: a pure function of (seed, position,
token id).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from xllm.hardware.kernels.triton.launch import (
    MAX_COUNTERS,
    allow_consumers,
    arrival_counters,
    pdl_options,
    wait_for_producers,
)

LN2 = tl.constexpr(0.6931471805599453)


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    keys: Tensor,
    tokens: Tensor,
    best_logits: Tensor,
    token_table: Tensor,
    write_index: Tensor,
) -> None:
    """See ``ops.sample_tokens``."""
    rows, vocab_size = logits.shape
    assert rows <= MAX_COUNTERS
    columns, block = choose_share(rows)
    shares = triton.cdiv(vocab_size, columns)
    partial = torch.empty((rows, 3, shares), dtype=torch.float32, device=logits.device)
    _sample_kernel[(shares, rows)](
        logits,
        inverse_temperature,
        keys,
        tokens,
        best_logits,
        token_table,
        write_index,
        partial,
        arrival_counters(logits.device),
        vocab_size,
        logits.stride(0),
        keys.stride(0),
        SHARES=shares,
        SHARES_BLOCK=triton.next_power_of_2(shares),
        COLUMNS=columns,
        BLOCK=block,
        num_warps=4,
        **pdl_options(logits.device),
    )


def choose_share(rows: int) -> tuple[int, int]:
    """Columns of a program, and at a time, from measurements on an H200.

    One row is spread over the device. Each answer is a kernel, so there is one for 1 row, few and
    many, which ``compile_ahead`` is shown. Tokens do not depend on it: a share's result is an exact
    maximum.
    """
    return (2048, 2048) if rows == 1 else (4096, 1024) if rows <= 8 else (8192, 1024)


@triton.jit
def exponential_log(key0, key1, token_ids):
    """log of the unit exponential draw of each token id: see ``execution.sampling.rng``."""
    x = token_ids.to(tl.uint32) * 0x9E3779B1 + key0.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = x ^ key1.to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x735A2D97
    x = (x ^ (x >> 15)) >> 1
    v = tl.minimum(x.to(tl.float32) * (1.0 / 2147483648.0) + 1.0 / 4294967296.0, 0.99999994)
    # -log(1 - v): the series where 1 - v would round v away.
    draw = tl.where(v < 1.0e-3, v * (1.0 + v * (0.5 + v * 0.33333334)), tl.log2(1.0 - v) * -LN2)
    return tl.log2(draw) * LN2


@triton.jit(do_not_specialize=["keys_stride"])
def _sample_kernel(
    logits_ptr,  # (M, V')
    inverse_temperature_ptr,  # (M,)
    keys_ptr,  # (2, M)
    tokens_ptr,  # (M,)
    best_ptr,  # (M,)
    table_ptr,  # flat
    write_index_ptr,  # (M,)
    partial_ptr,  # (M, 3, SHARES): score, token as float bits, largest logit
    counters_ptr,  # (M,) zero on entry and exit
    vocab_size,
    logits_stride,
    keys_stride,
    SHARES: tl.constexpr,
    SHARES_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    share = tl.program_id(0)
    row = tl.program_id(1)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    inverse_temperature = tl.load(inverse_temperature_ptr + row)
    key0 = tl.load(keys_ptr + row)
    key1 = tl.load(keys_ptr + keys_stride + row)
    logits_row = logits_ptr + row.to(tl.int64) * logits_stride
    lane = tl.arange(0, BLOCK)
    score = tl.full([BLOCK], -float("inf"), tl.float32)
    token = tl.zeros([BLOCK], tl.int32) + share * COLUMNS + lane
    peak = tl.full([BLOCK], -float("inf"), tl.float32)
    for at in range(0, COLUMNS, BLOCK):
        columns = share * COLUMNS + at + lane
        x = tl.load(logits_row + columns, mask=columns < vocab_size, other=-float("inf"))
        x = x.to(tl.float32)
        peak = tl.maximum(peak, x, propagate_nan=tl.PropagateNan.ALL)
        drawn = x
        if inverse_temperature > 0.0:
            drawn = x * inverse_temperature - exponential_log(key0, key1, columns)
        better = drawn > score
        score = tl.where(better, drawn, score)
        token = tl.where(better, columns, token)
    top = tl.max(score, axis=0)
    # Lanes hold several columns each: among equal scores the smallest token wins.
    winner = tl.min(tl.where(score == top, token, 2147483647), axis=0)
    highest = tl.max(peak, axis=0)
    if tl.max((peak != peak).to(tl.int32), axis=0) > 0:
        highest = float("nan")
    out = partial_ptr + row.to(tl.int64) * 3 * SHARES + share
    tl.store(out, top)
    tl.store(out + SHARES, winner.to(tl.float32, bitcast=True))
    tl.store(out + 2 * SHARES, highest)
    tl.debug_barrier()  # all stores of this program precede its arrival
    if tl.atomic_add(counters_ptr + row, 1, sem="acq_rel") != SHARES - 1:
        return
    tl.store(counters_ptr + row, 0)
    others = tl.arange(0, SHARES_BLOCK)
    present = others < SHARES
    source = partial_ptr + row.to(tl.int64) * 3 * SHARES + others
    scores = tl.load(source, mask=present, other=-float("inf"), cache_modifier=".cg")
    bits = tl.load(source + SHARES, mask=present, other=0.0, cache_modifier=".cg")
    peaks = tl.load(source + 2 * SHARES, mask=present, other=-float("inf"), cache_modifier=".cg")
    ids = bits.to(tl.int32, bitcast=True)
    best_score = tl.max(scores, axis=0)
    chosen = tl.min(tl.where(present & (scores == best_score), ids, 2147483647), axis=0)
    chosen = tl.minimum(chosen, vocab_size - 1)  # a row without a finite score still gets an id
    best = tl.max(peaks, axis=0)
    if tl.max((peaks != peaks).to(tl.int32), axis=0) > 0:
        best = float("nan")
    tl.store(tokens_ptr + row, chosen)
    tl.store(best_ptr + row, best)
    index = tl.load(write_index_ptr + row)
    if index >= 0:
        tl.store(table_ptr + index, chosen)
