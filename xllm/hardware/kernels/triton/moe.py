"""Mixture of experts: grouped products that read each expert's weights once per block of pairs.

The pairs of a token and an expert are sorted into blocks of one expert (``moe_group``); a program
multiplies one block with BLOCK_N rows of its expert's weight. The first product gathers its tokens
and writes in the blocks' order, so the second one's rows lie side by side; the second writes by
pair, and a token's pairs are summed at the end.

From compute capability 9 on, what is not gathered comes through tensor descriptors: at 8,192 tokens
of Qwen3-30B-A3B the first product takes a tenth less time than with addresses.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from xllm.hardware.kernels.triton.activation import KINDS, gated
from xllm.hardware.kernels.triton.launch import (
    allow_consumers,
    pdl_options,
    supports_descriptors,
    upcast_dots,
    wait_for_producers,
)
from xllm.hardware.kernels.triton.moe_group import Blocks, group_pairs
from xllm.hardware.kernels.triton.moe_stream import HALF, PackedExperts, stream_experts

MAX_STREAMED_TOKENS = 4
_REDUCE_BLOCK = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTile:
    """Tuning of one grouped product."""

    block_n: int  # rows of the weight
    block_k: int
    num_warps: int
    num_stages: int
    # The weight is the first operand: few pairs then waste no matrix unit. With many, tokens first
    # reads less shared memory per product.
    weight_first: bool


@dataclasses.dataclass(frozen=True, slots=True)
class GroupTiles:
    """Tuning of both products."""

    block_m: int  # pairs of one expert
    up: GroupTile
    down: GroupTile
    descriptors: bool


def pack_experts(
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> PackedExperts:
    """See ``ops.pack_experts``.

    Raises:
        ValueError: the hidden or the intermediate size is not a multiple of 8.
    """
    assert (gate_up_bias is None) == (down_bias is None)
    if down.shape[1] % HALF or down.shape[2] % HALF:
        raise ValueError(
            f"on a GPU, the hidden size ({down.shape[1]}) and the intermediate size of an expert "
            f"({down.shape[2]}) must be multiples of {HALF}"
        )
    if gate_up_bias is not None and down_bias is not None:
        gate_up_bias, down_bias = _interleave(gate_up_bias), down_bias.contiguous()
    return PackedExperts(_interleave(gate_up), down.contiguous(), gate_up_bias, down_bias)


def _interleave(gate_up: Tensor) -> Tensor:
    """(E, 2I, ...), gate rows first, to HALF gate rows, their HALF up rows, the next gate rows."""
    halves = gate_up.unflatten(1, (2, -1, HALF))
    return halves.transpose(1, 2).reshape(gate_up.shape)


def apply_experts(
    x: Tensor, packed: PackedExperts, weights: Tensor, experts: Tensor, activation: str
) -> Tensor:
    """See ``ops.apply_experts``."""
    tokens = x.shape[0]
    if not tokens:
        return torch.empty_like(x)
    if tokens <= MAX_STREAMED_TOKENS:
        return stream_experts(x.contiguous(), packed, weights, experts, activation)
    num_experts = packed.down.shape[0]
    tiles = choose_tiles(experts.numel() / num_experts, x.dtype, supports_descriptors(x.device))
    return grouped_experts(x.contiguous(), packed, weights, experts, activation, tiles)


def choose_tiles(per_expert: float, dtype: torch.dtype, descriptors: bool) -> GroupTiles:
    """Tiles for that many pairs of an expert on average, measured on an H200."""
    if dtype == torch.float32:
        tile = GroupTile(32, 32, 4, 2, True)
        return GroupTiles(16, tile, tile, descriptors)
    if per_expert <= 16:
        block_m = 16 if per_expert <= 8 else 32
        up, down = GroupTile(256, 64, 4, 5, True), GroupTile(128, 64, 4, 3, True)
    elif per_expert <= 80:
        block_m = 64
        up, down = GroupTile(256, 64, 8, 4, False), GroupTile(128, 64, 4, 4, True)
    elif per_expert <= 256:
        block_m = 128
        up = down = GroupTile(256, 64, 8, 4, False)
    else:
        block_m = 128
        up, down = GroupTile(256, 64, 8, 3, False), GroupTile(128, 64, 4, 3, False)
    if not descriptors:  # older devices have less shared memory
        block_m = min(block_m, 64)
        up = down = GroupTile(128, 64, 4, 3, True)
    return GroupTiles(block_m, up, down, descriptors)


def grouped_experts(
    x: Tensor,
    packed: PackedExperts,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    tiles: GroupTiles,
) -> Tensor:
    """``apply_experts`` for any number of tokens, with explicit tiles."""
    tokens, hidden = x.shape
    pairs, top_k = experts.numel(), experts.shape[1]
    num_experts, _, inner = packed.down.shape
    blocks = group_pairs(experts, num_experts, tiles.block_m)
    kind = KINDS[activation]
    activated = x.new_empty((blocks.bound * tiles.block_m, inner))
    _product(x, packed.gate_up, packed.gate_up_bias, blocks, activated, None, top_k, kind, tiles)
    parts = x.new_empty((pairs, hidden))
    _product(activated, packed.down, packed.down_bias, blocks, parts, weights, 1, None, tiles)
    out = torch.empty_like(x)
    _reduce_kernel[(tokens, triton.cdiv(hidden, _REDUCE_BLOCK))](
        parts,
        out,
        hidden,
        TOP_K=top_k,
        K_BLOCK=triton.next_power_of_2(top_k),
        BLOCK=min(_REDUCE_BLOCK, triton.next_power_of_2(hidden)),
        num_warps=4,
        **pdl_options(x.device),
    )
    return out


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    blocks: Blocks,
    out: Tensor,
    weights: Tensor | None,
    top_k: int,
    kind: int | None,
    tiles: GroupTiles,
) -> None:
    """Rows of ``x`` times their experts' ``weight`` (E, N, K), plus ``bias``, into ``out``.

    With ``kind``, of the activation, ``x`` (T, K) is gathered and ``out`` (S * block_m, N / 2) lies
    in the blocks' order. Without, ``x`` lies so, and ``out`` (P, N) is by pair, times ``weights``.
    """
    num_experts, rows, inputs = weight.shape
    tile = tiles.down if kind is None else tiles.up
    n_tiles = triton.cdiv(rows, tile.block_n)
    x_in: Tensor | TensorDescriptor = x
    weight_in: Tensor | TensorDescriptor = weight
    if tiles.descriptors:
        flat = weight.view(num_experts * rows, inputs)
        weight_in = TensorDescriptor.from_tensor(flat, [tile.block_n, tile.block_k])
        if kind is None:
            x_in = TensorDescriptor.from_tensor(x, [tiles.block_m, tile.block_k])
    _grouped_product_kernel[(blocks.bound * n_tiles,)](
        x_in,
        weight_in,
        bias,
        blocks.pairs,
        blocks.table,
        blocks.number,
        weights,
        out,
        rows,
        inputs,
        n_tiles,
        TOP_K=top_k,
        KIND=kind,
        DESCRIPTORS=tiles.descriptors,
        WEIGHT_FIRST=tile.weight_first,
        EVEN=inputs % tile.block_k == 0,
        HALF=HALF,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        UPCAST=upcast_dots(x.dtype),
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **pdl_options(x.device),
    )


@triton.jit
def _grouped_product_kernel(
    x_ptr,  # (T, K) where KIND, else (S * BLOCK_M, K), perhaps a descriptor
    weight_ptr,  # (E, N, K), or a descriptor of (E * N, K)
    bias_ptr,  # (E, N), or None
    pairs_ptr,  # (S * BLOCK_M,) int32
    table_ptr,  # (S, 2) int32
    number_ptr,  # (1,) int32
    weights_ptr,  # (P,) float32, unread where KIND
    out_ptr,  # (S * BLOCK_M, N / 2) where KIND, else (P, N)
    rows,  # N
    inputs,  # K
    n_tiles,
    TOP_K: tl.constexpr,
    KIND: tl.constexpr,  # of the activation, None without one
    DESCRIPTORS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    EVEN: tl.constexpr,  # inputs is a multiple of BLOCK_K
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0) // n_tiles
    n_tile = tl.program_id(0) % n_tiles
    wait_for_producers(PDL)
    allow_consumers(PDL)
    if block >= tl.load(number_ptr):
        return
    expert = tl.load(table_ptr + 2 * block)
    count = tl.load(table_ptr + 2 * block + 1)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    in_block = m < count
    places = block * BLOCK_M + m
    pairs = tl.load(pairs_ptr + places, mask=in_block, other=0)
    # Rows beyond the expert's or the block's are read as they lie, computed and never stored.
    if not DESCRIPTORS:
        w_rows = expert.to(tl.int64) * rows + tl.minimum(n, rows - 1)
        w_at = weight_ptr + w_rows[:, None] * inputs + k[None, :]
    if KIND is not None or not DESCRIPTORS:
        x_rows = pairs // TOP_K if KIND is not None else places
        x_at = x_ptr + x_rows.to(tl.int64)[:, None] * inputs + k[None, :]
    if WEIGHT_FIRST:
        y = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        if KIND is None and DESCRIPTORS:
            x = x_ptr.load([block * BLOCK_M, start])
        elif EVEN:
            x = tl.load(x_at + start)
        else:
            x = tl.load(x_at + start, mask=(start + k < inputs)[None, :], other=0.0)
        if DESCRIPTORS:  # zero beyond the inputs
            w = weight_ptr.load([expert * rows + n_tile * BLOCK_N, start])
        elif EVEN:
            w = tl.load(w_at + start)
        else:
            w = tl.load(w_at + start, mask=(start + k < inputs)[None, :], other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        if WEIGHT_FIRST:
            y = tl.dot(w, x.T, y, input_precision=PRECISION)
        else:
            y = tl.dot(x, w.T, y, input_precision=PRECISION)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + expert * rows + n, mask=n < rows, other=0.0).to(tl.float32)
        y += tl.expand_dims(bias, 1 if WEIGHT_FIRST else 0)
    if KIND is not None:
        gate, up = _halves(y, WEIGHT_FIRST, HALF)
        y = gated(gate, up, KIND)
        to_row, outputs = places, rows // 2
        c = n_tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        scale = tl.load(weights_ptr + pairs, mask=in_block, other=0.0)
        y *= tl.expand_dims(scale, 0 if WEIGHT_FIRST else 1)
        to_row, outputs = pairs, rows
        c = n
    y = y.to(out_ptr.dtype.element_ty)
    to_row = to_row.to(tl.int64)
    in_c = c < outputs
    if WEIGHT_FIRST:
        to = out_ptr + to_row[None, :] * outputs + c[:, None]
        tl.store(to, y, mask=in_block[None, :] & in_c[:, None])
    else:
        to = out_ptr + to_row[:, None] * outputs + c[None, :]
        tl.store(to, y, mask=in_block[:, None] & in_c[None, :])


@triton.jit
def _halves(y, WEIGHT_FIRST: tl.constexpr, HALF: tl.constexpr):
    """Gate and up of a tile over interleaved rows. A thread holds both: nothing moves."""
    n: tl.constexpr = y.shape[0] if WEIGHT_FIRST else y.shape[1]
    m: tl.constexpr = y.shape[1] if WEIGHT_FIRST else y.shape[0]
    if WEIGHT_FIRST:
        y = tl.reshape(y, [n // (2 * HALF), 2, HALF, m])
        gate, up = tl.split(tl.permute(y, [0, 2, 3, 1]))
        gate = tl.reshape(gate, [n // 2, m])
        up = tl.reshape(up, [n // 2, m])
    else:
        y = tl.reshape(y, [m, n // (2 * HALF), 2, HALF])
        gate, up = tl.split(tl.permute(y, [0, 1, 3, 2]))
        gate = tl.reshape(gate, [m, n // 2])
        up = tl.reshape(up, [m, n // 2])
    return gate, up


@triton.jit
def _reduce_kernel(
    parts_ptr,  # (T, TOP_K, H)
    out_ptr,  # (T, H)
    hidden,
    TOP_K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = tl.arange(0, K_BLOCK)
    inside = columns < hidden
    wait_for_producers(PDL)
    allow_consumers(PDL)
    at = (token * TOP_K + places)[:, None] * hidden + columns[None, :]
    mask = (places < TOP_K)[:, None] & inside[None, :]
    parts = tl.load(parts_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.sum(parts, axis=0)
    tl.store(out_ptr + token * hidden + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
