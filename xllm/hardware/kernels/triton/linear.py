"""Matrix products: streaming kernels for few tokens, the vendor library for many.

A product of few tokens only streams the weight once; its time is the weight's bytes over the
memory bandwidth. Few are up to 16, of some weights more (``max_streamed_tokens``). Weights do not
depend on earlier kernels, so each program requests its first tile before it waits for its input:
the memory stays busy while the small kernels between two products run. Grid, of 2 tokens and more:
(output tile, K share). One token has its own kernel, ``matvec``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from xllm.hardware.kernels.reference.linear import SCALED_DTYPES, dequantize_weight
from xllm.hardware.kernels.tokens import QuantizedTokens, Tokens, UnscaledToken
from xllm.hardware.kernels.triton.activation import KINDS, act_and_mul, gated
from xllm.hardware.kernels.triton.fp8 import (
    FP8,
    MAX_STREAMED_FP8_TOKENS,
    library_takes_blocks,
    linear_fp8,
    quantize_tokens,
    scale_width,
)
from xllm.hardware.kernels.triton.fp8_block import linear_block
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    arrival_counters,
    num_multiprocessors,
    pdl_options,
    upcast_dots,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.matvec import Norm, finishes_norm, matvec, matvec_add_norm
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm
from xllm.hardware.kernels.triton.packed import PackedLinear
from xllm.hardware.kernels.triton.split_k import arrives_last, sum_of_shares

MAX_STREAMED_TOKENS = 16  # of any weight
MAX_SMALL_STREAMED_TOKENS = 32  # of small weights
_SMALL = 1 << 26  # values


@dataclasses.dataclass(frozen=True, slots=True)
class StreamTile:
    """Tuning of one streamed product."""

    block_n: int
    block_k: int
    k_shares: int = 1
    num_warps: int = 4
    num_stages: int = 3


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> PackedLinear:
    """See ``ops.pack_linear``."""
    if (weight.dtype in SCALED_DTYPES) != (scale is not None):
        raise ValueError("8-bit weights come with a scale, other weights without one")
    if scale is not None:
        scale = scale.to(torch.float32).contiguous()
        if weight.dtype == FP8 and scale.dim() == 2:
            library_takes_blocks(weight.device)  # tries it now, ahead of graph captures
    return PackedLinear(weight.contiguous(), scale)


def linear(x: Tokens, packed: PackedLinear, bias: Tensor | None = None) -> Tensor:
    """See ``ops.linear``."""
    if isinstance(x, UnscaledToken):
        return matvec(x, packed.weight, packed.scale, bias)
    tokens, weight, scale = x.shape[0], packed.weight, packed.scale
    if isinstance(x, Tensor) and (width := scale_width(packed, tokens, x.dtype)):
        x = quantize_tokens(x, width)
    if not isinstance(x, QuantizedTokens):
        return _linear(x, packed, bias)
    assert scale is not None
    if packed.by_block:
        return linear_block(x, weight, scale, bias)
    if tokens <= MAX_STREAMED_FP8_TOKENS:
        tile = choose_tile(tokens, weight, num_multiprocessors(weight.device))
        return stream_linear(x.values, packed, bias, tile, x.scale, x.dtype)
    return linear_fp8(x, weight, scale, bias)


def _linear(x: Tensor, packed: PackedLinear, bias: Tensor | None) -> Tensor:
    """The product of activations that are not quantized."""
    weight, scale = packed.weight, packed.scale
    if x.shape[0] == 1:
        return matvec(x, weight, scale, bias)
    if 0 < x.shape[0] <= max_streamed_tokens(packed, x.dtype):
        tile = choose_tile(x.shape[0], weight, num_multiprocessors(x.device))
        return stream_linear(x, packed, bias, tile)
    if scale is not None:
        weight = dequantize_weight(weight, scale).to(x.dtype)
    return functional.linear(x, weight, bias)


def gated_linear(
    x: Tokens,
    packed: PackedLinear,
    bias: Tensor | None,
    activation: str,
    into: Any = None,
) -> Tensor | QuantizedTokens:
    """See ``ops.gated_linear``. A streamed product activates what it has summed."""
    tokens = x.shape[0]
    if (
        isinstance(x, QuantizedTokens)
        or not 0 < tokens <= max_streamed_tokens(packed, x.dtype)
        or activation not in KINDS
        # Quantizing wants a token's largest value, which no program sees.
        or scale_width(packed, tokens, x.dtype)
        or scale_width(into, tokens, x.dtype)
    ):
        return act_and_mul(linear(x, packed, bias), activation, into)
    if tokens == 1:
        return matvec(x, packed.weight, packed.scale, bias, activation)
    assert isinstance(x, Tensor)
    tile = choose_tile(tokens, packed.weight, num_multiprocessors(x.device))
    return stream_linear(x, packed, bias, tile, activation=activation)


def linear_add_rms_norm(
    x: Tokens,
    packed: PackedLinear,
    bias: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tokens, Tensor]:
    """See ``ops.linear_add_rms_norm``. The reader of one token finishes its norm."""
    if x.shape[0] != 1 or not finishes_norm(into, x.dtype):
        x = linear(x, packed, bias)
        return fused_add_rms_norm(x, residual, weight, eps, offset, into)
    assert not isinstance(x, QuantizedTokens)
    norm = Norm(residual, weight, eps, offset)
    return matvec_add_norm(x, packed.weight, packed.scale, bias, norm), residual


def max_streamed_tokens(packed: PackedLinear, dtype: torch.dtype) -> int:
    """Tokens of ``dtype``, not quantized, up to which their product is streamed.

    Measured on an H200: with 17 to 32 tokens in bfloat16, weights of 2 to 50 million values take
    0.74 to 1.03 of the library's time, and their activation goes along; one of 100 million takes
    1.11. The library has no product with weights of 8 bits: they would be widened in memory, which
    alone moves 19 bytes a value.
    """
    if packed.by_block:
        return 1
    if dtype == torch.float32:
        return MAX_STREAMED_TOKENS
    if packed.scale is not None:
        return MAX_STREAMED_FP8_TOKENS
    return MAX_SMALL_STREAMED_TOKENS if packed.weight.numel() <= _SMALL else MAX_STREAMED_TOKENS


def choose_tile(tokens: int, weight: Tensor, num_sms: int) -> StreamTile:
    """The tile for a product of ``tokens`` rows, from measurements on an H200."""
    outputs, inputs = weight.shape
    tiles = triton.cdiv(outputs, 64)
    shares = 1
    if weight.dtype == FP8:
        if inputs > 8192 and tiles < num_sms:
            shares = 4 if tokens <= 16 else 2
        return StreamTile(64, 128 if tiles > 2 * num_sms else 256, shares, num_stages=4)
    # Up to 16 tokens, two programs fit on a multiprocessor, beyond that one (in 16 bits); a share
    # shorter than 512 inputs is all overhead.
    programs = 2 * num_sms if tokens <= MAX_STREAMED_TOKENS else num_sms
    while shares < 4 and 2 * tiles * shares <= programs and inputs >= 1024 * max(shares, 2):
        shares *= 2
    if tiles > num_sms // 2:
        shares = 1
    return StreamTile(64, 128, shares, num_stages=4)


def stream_linear(
    x: Tensor,
    packed: PackedLinear,
    bias: Tensor | None,
    tile: StreamTile,
    x_scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    activation: str | None = None,
) -> Tensor:
    """``x`` (T, K) times the weight, for few tokens, with an explicit tile.

    With ``x_scale``, one per token, ``x`` is in 8 bits like the weight, and the result in
    ``out_dtype``. With ``activation``, the result is that of ``ops.gated_linear``.
    """
    weight = packed.weight
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    assert x.stride(1) == 1 and tokens <= MAX_STREAMED_FP8_TOKENS
    width = outputs if activation is None else outputs // 2
    out = torch.empty((tokens, width), dtype=out_dtype or x.dtype, device=x.device)
    tiles = triton.cdiv(outputs, tile.block_n)
    shares = tile.k_shares
    partial = out
    if shares > 1:
        partial = torch.empty((shares, tokens, outputs), dtype=torch.float32, device=x.device)
    k_per_share = triton.cdiv(triton.cdiv(inputs, tile.block_k), shares) * tile.block_k
    _stream_linear_kernel[(tiles, shares)](
        x,
        weight,
        x_scale,
        packed.scale,
        bias,
        out,
        partial,
        arrival_counters(x.device),
        tokens,
        outputs,
        inputs,
        k_per_share,
        x.stride(0),
        EVEN=k_per_share * shares == inputs,
        SHARES=shares,
        KIND=-1 if activation is None else KINDS[activation],
        BLOCK_T=max(16, triton.next_power_of_2(tokens)),
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.num_stages,
        UPCAST=upcast_dots(x.dtype),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def _stream_linear_kernel(
    x_ptr,  # (T, K)
    weight_ptr,  # (N, K)
    x_scale_ptr,  # (T,) float32 or None
    scale_ptr,  # (N,) float32 or None
    bias_ptr,  # (N,) or None
    out_ptr,  # (T, N), gated (T, N / 2)
    partial_ptr,  # (SHARES, T, N) float32
    counters_ptr,  # one per output tile, zero on entry and exit
    num_tokens,
    outputs,
    inputs,
    inputs_per_share,
    x_stride,
    EVEN: tl.constexpr,  # inputs = SHARES * inputs_per_share
    SHARES: tl.constexpr,
    KIND: tl.constexpr,  # of the activation of gates, -1 without them
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    share = tl.program_id(1)
    in_n = n < outputs
    if KIND >= 0:  # a gate, the output that it gates, the next gate, ...
        n = n // 2 + (n % 2) * (outputs // 2)
    start = share * inputs_per_share
    k = tl.arange(0, BLOCK_K)
    rows = weight_ptr + n.to(tl.int64)[:, None] * inputs
    allow_consumers(PDL)
    first_mask = in_n[:, None]
    if not EVEN:
        first_mask = first_mask & ((start + k) < inputs)[None, :]
    first = tl.load(rows + (start + k)[None, :], mask=first_mask, other=0.0)
    wait_for_producers(PDL)
    t = tl.arange(0, BLOCK_T)
    in_t = t < num_tokens
    x_rows = x_ptr + t[None, :] * x_stride
    x = tl.load(
        x_rows + (start + k)[:, None],
        mask=in_t[None, :] & (start + k < inputs)[:, None],
        other=0.0,
    )
    w = first.to(x.dtype)
    if UPCAST:
        x = x.to(tl.float32)
        w = w.to(tl.float32)
    y = tl.dot(w, x, input_precision=PRECISION)
    for at in tl.range(BLOCK_K, inputs_per_share, BLOCK_K, num_stages=STAGES):
        kk = start + at + k
        mask = in_n[:, None]
        x_mask = in_t[None, :]
        if not EVEN:
            mask = mask & (kk < inputs)[None, :]
            x_mask = x_mask & (kk < inputs)[:, None]
        w = tl.load(rows + kk[None, :], mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_rows + kk[:, None], mask=x_mask, other=0.0)
        w = w.to(x.dtype)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        y = tl.dot(w, x, y, input_precision=PRECISION)

    mask = in_n[:, None] & (t < num_tokens)[None, :]
    at = t.to(tl.int64)[None, :] * outputs + n[:, None]
    if SHARES > 1:
        span = num_tokens * outputs  # SHARES * T * N stays below 2**31
        counter = counters_ptr + tl.program_id(0)
        if not arrives_last(y, partial_ptr + share * span + at, mask, counter, SHARES):
            return
        y = sum_of_shares(partial_ptr + at, span, mask, SHARES)
    if x_scale_ptr is not None:
        y *= tl.load(x_scale_ptr + t, mask=t < num_tokens, other=0.0)[None, :]
    if scale_ptr is not None:
        y *= tl.load(scale_ptr + n, mask=in_n, other=0.0)[:, None]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    dtype = out_ptr.dtype.element_ty
    if KIND >= 0:
        # Rounded as the product alone would be.
        pairs = y.to(dtype).reshape(BLOCK_N // 2, 2, BLOCK_T).permute(0, 2, 1)
        gate, up = tl.split(pairs)
        y = gated(gate.to(tl.float32), up.to(tl.float32), KIND)
        half = outputs // 2
        n = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        mask = (n < half)[:, None] & (t < num_tokens)[None, :]
        at = t.to(tl.int64)[None, :] * half + n[:, None]
    tl.store(out_ptr + at, y.to(dtype), mask=mask)
