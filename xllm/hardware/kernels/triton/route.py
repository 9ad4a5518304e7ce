"""Expert choice: router product, softmax and top-k.

One token takes one launch: a program per expert, and the last one to arrive chooses. Experts are
chosen by integers that order logits as they are and name the expert as well, so that a warp finds
the next one with a single instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    arrival_counters,
    pdl_options,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.matvec import load_squares, split_norm

_BLOCK_K = 2048


def route(
    x: Tensor | UnscaledToken,
    weight: Tensor,
    top_k: int,
    normalize: bool,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.route``."""
    x, squares, eps = split_norm(x)
    tokens, hidden = x.shape
    num_experts = weight.shape[0]
    assert top_k <= num_experts and x.stride(1) == 1 and weight.is_contiguous()
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=x.device)
    experts = torch.empty((tokens, top_k), dtype=torch.int32, device=x.device)
    constants = {
        "TOP_K": top_k,
        "K_BLOCK": triton.next_power_of_2(top_k),
        "E_BLOCK": triton.next_power_of_2(num_experts),
        "NORMALIZE": normalize,
        "num_warps": 1,
        **pdl_options(x.device),
    }
    if tokens == 1:
        _score_and_choose_kernel[(num_experts,)](
            x,
            squares,
            weight,
            bias,
            x.new_empty(num_experts),
            arrival_counters(x.device),
            weights,
            experts,
            eps,
            hidden,
            num_experts,
            PARTS=0 if squares is None else squares.numel(),
            BLOCK_K=min(triton.next_power_of_2(hidden), _BLOCK_K),
            **constants,
        )
    elif tokens:
        logits = functional.linear(x, weight, bias)
        _choose_kernel[(tokens,)](logits, weights, experts, num_experts, **constants)
    return weights, experts


@triton.jit
def _keys(logits, experts):
    """Integers in the order of the logits, of equal ones the lower expert's first.

    A logit's bits, ordered as integers are, stand above the expert's. They are twice as wide.
    """
    BITS: tl.constexpr = logits.dtype.primitive_bitwidth
    NARROW: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    WIDE: tl.constexpr = tl.int32 if BITS == 16 else tl.int64
    bits = logits.to(NARROW, bitcast=True).to(WIDE)
    # The magnitude of negative floats grows with their bits; of integers it is the other way.
    ordered = bits ^ ((bits >> (BITS - 1)) & ((1 << (BITS - 1)) - 1))
    return (ordered << BITS) | (((1 << BITS) - 1) - experts.to(WIDE))


@triton.jit
def _of_keys(keys, dtype: tl.constexpr):
    """Logits, in their ``dtype``, and experts."""
    BITS: tl.constexpr = dtype.primitive_bitwidth
    NARROW: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    bits = keys >> BITS
    bits ^= (bits >> (BITS - 1)) & ((1 << (BITS - 1)) - 1)
    experts = ((1 << BITS) - 1) - (keys & ((1 << BITS) - 1))
    return bits.to(NARROW).to(dtype, bitcast=True), experts.to(tl.int32)


@triton.jit
def _choose(
    logits,  # (E_BLOCK,), -inf beyond E
    weights_ptr,  # (TOP_K,) of this token
    experts_ptr,
    num_experts,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Store the experts of one token. They are distinct and below E also where logits are NaN;
    the weights are then NaN."""
    each = tl.arange(0, E_BLOCK)
    places = tl.arange(0, K_BLOCK)
    LEAST: tl.constexpr = -(1 << (2 * logits.dtype.primitive_bitwidth - 1))
    keys = tl.where(each < num_experts, _keys(logits, each), LEAST)
    chosen = tl.full([K_BLOCK], LEAST, keys.dtype)
    for place in tl.static_range(TOP_K):
        best = tl.max(keys, axis=0)
        chosen = tl.where(places == place, best, chosen)
        keys = tl.where(keys == best, LEAST, keys)
    values, experts = _of_keys(chosen, logits.dtype)
    values = tl.where(places < TOP_K, values.to(tl.float32), -float("inf"))
    exponents = tl.exp(values - tl.max(values, axis=0))
    logits = logits.to(tl.float32)
    total = tl.sum(tl.exp(logits - tl.max(logits, axis=0)), axis=0)
    if NORMALIZE:
        weights = exponents / tl.sum(exponents, axis=0) + (total - total)
    else:
        weights = exponents / total
    tl.store(weights_ptr + places, weights, mask=places < TOP_K)
    tl.store(experts_ptr + places, experts, mask=places < TOP_K)


@triton.jit
def _choose_kernel(
    logits_ptr,  # (T, E)
    weights_ptr,  # (T, TOP_K) float32
    experts_ptr,  # (T, TOP_K) int32
    num_experts,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0)
    each = tl.arange(0, E_BLOCK)
    wait_for_producers(PDL)
    allow_consumers(PDL)
    at = logits_ptr + token * num_experts + each
    logits = tl.load(at, mask=each < num_experts, other=-float("inf"))
    weights_ptr += token * TOP_K
    experts_ptr += token * TOP_K
    _choose(logits, weights_ptr, experts_ptr, num_experts, TOP_K, K_BLOCK, E_BLOCK, NORMALIZE)


@triton.jit
def _score_and_choose_kernel(
    x_ptr,  # (H,)
    squares_ptr,  # (PARTS,) float32, whose sum is that of the squares that scale x; or None
    weight_ptr,  # (E, H)
    bias_ptr,  # (E,), or None
    logits_ptr,  # (E,)
    counter_ptr,  # zero on entry and exit
    weights_ptr,  # (TOP_K,) float32
    experts_ptr,  # (TOP_K,) int32
    eps,  # of the norm that scales x
    hidden,
    num_experts,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    expert = tl.program_id(0)
    k = tl.arange(0, BLOCK_K)
    row = weight_ptr + expert * hidden
    allow_consumers(PDL)
    w = tl.load(row + k, mask=k < hidden, other=0.0).to(tl.float32)
    wait_for_producers(PDL)
    if squares_ptr is not None:
        squares = load_squares(squares_ptr, k, PARTS, BLOCK_K)
    acc = w * tl.load(x_ptr + k, mask=k < hidden, other=0.0).to(tl.float32)
    for start in range(BLOCK_K, hidden, BLOCK_K):
        in_row = start + k < hidden
        w = tl.load(row + start + k, mask=in_row, other=0.0).to(tl.float32)
        acc += w * tl.load(x_ptr + start + k, mask=in_row, other=0.0).to(tl.float32)
    y = tl.sum(acc, axis=0)
    if squares_ptr is not None:
        y /= tl.sqrt(tl.sum(squares, axis=0) / hidden + eps)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + expert).to(tl.float32)
    # Rounded to the model's dtype, as a product of its own would be.
    tl.store(logits_ptr + expert, y.to(logits_ptr.dtype.element_ty))
    tl.debug_barrier()  # the logit is stored before this program arrives
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") != tl.num_programs(0) - 1:
        return
    tl.store(counter_ptr, 0)
    each = tl.arange(0, E_BLOCK)
    at = logits_ptr + each
    logits = tl.load(at, mask=each < num_experts, other=-float("inf"), cache_modifier=".cg")
    _choose(logits, weights_ptr, experts_ptr, num_experts, TOP_K, K_BLOCK, E_BLOCK, NORMALIZE)
