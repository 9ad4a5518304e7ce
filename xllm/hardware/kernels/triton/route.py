"""Expert choice: router product, softmax and top-k.

One token takes one launch together with the norm before it: programs share out the experts, each
normalizes the token for itself, and the last one to arrive chooses.
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
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm

MAX_FUSED_HIDDEN = 8192  # a program holds the token
MAX_FUSED_EXPERTS = 128  # and compares all of them with each other
_BLOCK_N = 4


def route(
    x: Tensor, weight: Tensor, top_k: int, normalize: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See ``ops.route``."""
    tokens, num_experts = x.shape[0], weight.shape[0]
    assert top_k <= num_experts
    weights, experts = _empty_choice(x, top_k)
    if tokens:
        _choose_kernel[(tokens,)](
            functional.linear(x, weight, bias),
            weights,
            experts,
            num_experts,
            TOP_K=top_k,
            K_BLOCK=triton.next_power_of_2(top_k),
            E_BLOCK=triton.next_power_of_2(num_experts),
            NORMALIZE=normalize,
            num_warps=1,
            **pdl_options(x.device),
        )
    return weights, experts


def add_norm_route(
    x: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    offset: float,
    router: Tensor,
    top_k: int,
    normalize: bool,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``ops.add_norm_route``."""
    num_experts, hidden = router.shape
    if x.shape[0] != 1 or hidden > MAX_FUSED_HIDDEN or num_experts > MAX_FUSED_EXPERTS:
        y, residual = fused_add_rms_norm(x, residual, norm_weight, eps, offset)
        assert isinstance(y, Tensor)
        return y, residual, *route(y, router, top_k, normalize, bias)
    assert top_k <= num_experts and router.is_contiguous()
    assert x.is_contiguous() and residual.is_contiguous()
    weights, experts = _empty_choice(x, top_k)
    # Every program reads the residual, so none may overwrite it.
    normed, total = torch.empty_like(x), torch.empty_like(residual)
    _add_norm_route_kernel[(triton.cdiv(num_experts, _BLOCK_N),)](
        x,
        residual,
        norm_weight,
        router,
        bias,
        torch.empty(num_experts, dtype=torch.float32, device=x.device),
        arrival_counters(x.device),
        normed,
        total,
        weights,
        experts,
        eps,
        offset,
        hidden,
        num_experts,
        BLOCK_N=_BLOCK_N,
        BLOCK_K=triton.next_power_of_2(hidden),
        TOP_K=top_k,
        E_BLOCK=triton.next_power_of_2(num_experts),
        NORMALIZE=normalize,
        num_warps=8,
        **pdl_options(x.device),
    )
    return normed, total, weights, experts


def _empty_choice(x: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights and experts of every token."""
    shape = (x.shape[0], top_k)
    weights = torch.empty(shape, dtype=torch.float32, device=x.device)
    return weights, torch.empty(shape, dtype=torch.int32, device=x.device)


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


@triton.jit
def _add_norm_route_kernel(
    x_ptr,  # (H,)
    residual_ptr,  # (H,)
    norm_ptr,  # (H,)
    weight_ptr,  # (E, H)
    bias_ptr,  # (E,), or None
    logits_ptr,  # (E,) float32
    counter_ptr,  # zero on entry and exit
    normed_ptr,  # (H,)
    total_ptr,  # (H,)
    weights_ptr,  # (TOP_K,) float32
    experts_ptr,  # (TOP_K,) int32
    eps,
    offset,
    hidden,
    num_experts,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOP_K: tl.constexpr,
    E_BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_n = n < num_experts
    in_k = k < hidden
    allow_consumers(PDL)
    rows = weight_ptr + n[:, None] * hidden + k[None, :]
    w = tl.load(rows, mask=in_n[:, None] & in_k[None, :], other=0.0)
    gain = tl.load(norm_ptr + k, mask=in_k, other=0.0).to(tl.float32) + offset
    wait_for_producers(PDL)
    x = tl.load(x_ptr + k, mask=in_k, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + k, mask=in_k, other=0.0).to(tl.float32)
    rounded = x.to(total_ptr.dtype.element_ty)
    x = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
    y = (x * scale * gain).to(normed_ptr.dtype.element_ty)
    if tl.program_id(0) == 0:
        tl.store(total_ptr + k, rounded, mask=in_k)
        tl.store(normed_ptr + k, y, mask=in_k)
    logit = tl.sum(w.to(tl.float32) * y.to(tl.float32)[None, :], axis=1)
    if bias_ptr is not None:
        logit += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)
    # Rounded to the model's dtype, as a product of its own would be.
    logit = logit.to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(logits_ptr + n, logit, mask=in_n)
    tl.debug_barrier()  # all stores of this program precede its arrival
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") != tl.num_programs(0) - 1:
        return
    tl.store(counter_ptr, 0)

    # As _choose, all places at once: an expert's is the number of those ahead of it.
    each = tl.arange(0, E_BLOCK)
    inside = each < num_experts
    logits = tl.load(logits_ptr + each, mask=inside, other=-float("inf"), cache_modifier=".cg")
    total = tl.sum(tl.exp(logits - tl.max(logits, axis=0)), axis=0)
    left = tl.where(logits == logits, logits, -1.0e30)
    left = tl.where(inside, tl.maximum(left, -1.0e30), -float("inf"))
    tied = (left[None, :] == left[:, None]) & (each[None, :] < each[:, None])
    ahead = (left[None, :] > left[:, None]) | tied
    place = tl.sum(ahead.to(tl.int32), axis=1)
    chosen = place < TOP_K
    exponents = tl.exp(left - tl.max(left, axis=0))
    if NORMALIZE:
        weights = exponents / tl.sum(tl.where(chosen, exponents, 0.0), axis=0) + (total - total)
    else:
        weights = exponents / total
    tl.store(weights_ptr + place, weights, mask=chosen)
    tl.store(experts_ptr + place, each, mask=chosen)
