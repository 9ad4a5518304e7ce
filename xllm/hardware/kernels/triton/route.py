"""Expert choice: router product, softmax and top-k.

One token takes one launch: programs share out the experts, and the last one to arrive chooses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    arrival_counters,
    pdl_options,
    wait_for_producers,
)

MAX_FUSED_TOKENS = 1
_BLOCK_N = 4
_BLOCK_K = 2048


def route(
    x: Tensor, weight: Tensor, top_k: int, normalize: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ``ops.route``."""
    tokens, hidden = x.shape
    num_experts = weight.shape[0]
    assert top_k <= num_experts and x.stride(1) == 1 and weight.is_contiguous()
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=x.device)
    experts = torch.empty((tokens, top_k), dtype=torch.int32, device=x.device)
    if not tokens:
        return weights, experts
    constants = {
        "TOP_K": top_k,
        "K_BLOCK": triton.next_power_of_2(top_k),
        "E_BLOCK": triton.next_power_of_2(num_experts),
        "NORMALIZE": normalize,
        **pdl_options(x.device),
    }
    if tokens <= MAX_FUSED_TOKENS:
        logits = torch.empty((tokens, num_experts), dtype=torch.float32, device=x.device)
        _score_and_choose_kernel[(triton.cdiv(num_experts, _BLOCK_N),)](
            x,
            weight,
            bias,
            logits,
            arrival_counters(x.device),
            weights,
            experts,
            tokens,
            hidden,
            num_experts,
            x.stride(0),
            BLOCK_N=_BLOCK_N,
            BLOCK_K=min(triton.next_power_of_2(hidden), _BLOCK_K),
            num_warps=4,
            **constants,
        )
        return weights, experts
    logits = functional.linear(x, weight, bias)
    _choose_kernel[(tokens,)](logits, weights, experts, num_experts, num_warps=1, **constants)
    return weights, experts


@triton.jit
def _choose(
    logits,  # (E_BLOCK,) float32, -inf beyond E
    weights_ptr,  # (TOP_K,) of this token
    experts_ptr,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Store the experts of one token. They are distinct and below E also where logits are NaN;
    the weights are then NaN."""
    each = tl.arange(0, E_BLOCK)
    places = tl.arange(0, K_BLOCK)
    total = tl.sum(tl.exp(logits - tl.max(logits, axis=0)), axis=0)
    left = tl.where(logits == logits, logits, -1.0e30)
    left = tl.where(logits == -float("inf"), logits, tl.maximum(left, -1.0e30))
    chosen = tl.full([K_BLOCK], -float("inf"), tl.float32)
    experts = tl.zeros([K_BLOCK], tl.int32)
    for place in tl.static_range(TOP_K):
        best = tl.max(left, axis=0)
        expert = tl.argmax(left, axis=0)
        chosen = tl.where(places == place, best, chosen)
        experts = tl.where(places == place, expert, experts)
        left = tl.where(each == expert, -float("inf"), left)
    exponents = tl.exp(chosen - tl.max(chosen, axis=0))
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
    at = token * num_experts + each
    logits = tl.load(logits_ptr + at, mask=each < num_experts, other=-float("inf"))
    _choose(
        logits.to(tl.float32),
        weights_ptr + token * TOP_K,
        experts_ptr + token * TOP_K,
        TOP_K,
        K_BLOCK,
        E_BLOCK,
        NORMALIZE,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _score_and_choose_kernel(
    x_ptr,  # (T, H)
    weight_ptr,  # (E, H)
    bias_ptr,  # (E,), or None
    logits_ptr,  # (T, E) float32
    counter_ptr,  # zero on entry and exit
    weights_ptr,  # (T, TOP_K) float32
    experts_ptr,  # (T, TOP_K) int32
    num_tokens,
    hidden,
    num_experts,
    x_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_n = n < num_experts
    rows = weight_ptr + n[:, None] * hidden
    allow_consumers(PDL)
    first = tl.load(rows + k[None, :], mask=in_n[:, None] & (k < hidden)[None, :], other=0.0)
    first = first.to(tl.float32)
    wait_for_producers(PDL)
    for token in range(num_tokens):
        x_row = x_ptr + token * x_stride
        x = tl.load(x_row + k, mask=k < hidden, other=0.0).to(tl.float32)
        acc = first * x[None, :]
        for start in range(BLOCK_K, hidden, BLOCK_K):
            kk = start + k
            mask = in_n[:, None] & (kk < hidden)[None, :]
            w = tl.load(rows + kk[None, :], mask=mask, other=0.0).to(tl.float32)
            acc += w * tl.load(x_row + kk, mask=kk < hidden, other=0.0).to(tl.float32)[None, :]
        y = tl.sum(acc, axis=1)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)
        # Rounded to the model's dtype, as a product of its own would be.
        y = y.to(x_ptr.dtype.element_ty).to(tl.float32)
        tl.store(logits_ptr + token * num_experts + n, y, mask=in_n)
    tl.debug_barrier()  # all stores of this program precede its arrival
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") != tl.num_programs(0) - 1:
        return
    tl.store(counter_ptr, 0)
    each = tl.arange(0, E_BLOCK)
    for token in range(num_tokens):
        at = logits_ptr + token * num_experts + each
        logits = tl.load(at, mask=each < num_experts, other=-float("inf"), cache_modifier=".cg")
        _choose(
            logits,
            weights_ptr + token * TOP_K,
            experts_ptr + token * TOP_K,
            TOP_K,
            K_BLOCK,
            E_BLOCK,
            NORMALIZE,
        )
