"""GGML block formats to float32, vectorized over all blocks of a tensor.

The formats of common files are unpacked here with torch, on all threads; every other type that the
``gguf`` package knows goes through it. Both give the same bits: a block's float32 value is
``d * q`` (or ``d * q + m``) with ``d`` and ``m`` widened from float16.

Shapes: N blocks; a block is 32 values, or 256 in the K formats, which have 8 or 16 scales.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFormat:
    """Size of a block and how to expand uint8 (N, num_bytes) to float32 (N, num_values)."""

    num_values: int
    num_bytes: int
    expand: Callable[[Tensor], Tensor]


def block_format(type_id: int) -> BlockFormat:
    """The format of a ``GGMLQuantizationType`` number.

    Raises:
        ValueError: the type is unknown to this module and to the ``gguf`` package.
    """
    return _FORMATS.get(type_id) or _package_format(type_id)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte ``start`` of each block, widened, shape (N, 1)."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """(N, G, B) bytes -> (N, G, 2, B): low halves, then high halves."""
    return torch.stack((packed & 15, packed >> 4), dim=2)


def _bits(packed: Tensor, count: int, width: int = 1) -> Tensor:
    """(N, B) bytes -> (N, count, B): ``width``-bit fields, lowest first."""
    shifts = torch.arange(0, count * width, width, dtype=torch.uint8)
    return (packed[:, None, :] >> shifts[:, None]) & ((1 << width) - 1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """(N, 4) bytes -> (N, 32): bit ``i % 8`` of byte ``i // 8`` at position ``i``, times 16.

    By table: a byte gives eight bytes, gathered as one int64.
    """
    every_byte = torch.arange(256, dtype=torch.uint8)[:, None]
    table = (_bits(every_byte, 8).reshape(256, 8) << 4).view(torch.int64).view(256)
    return table[packed.int()].view(torch.uint8)


def _float32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _float16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bfloat16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _q4_0(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, None, 2:]).view(-1, 32)
    return (q.float() - 8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, None, 4:]).view(-1, 32)
    return q.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, None, 6:]).view(-1, 32) | _fifth_bits(blocks[:, 2:6])
    return (q.float() - 16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, None, 8:]).view(-1, 32) | _fifth_bits(blocks[:, 4:8])
    return q.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums (N, 8, 1) of Q4_K and Q5_K: eight 6-bit pairs in bytes 4..16.

    Bytes 0-3 and 4-7 hold the low six bits of scales and minimums 0-3; their top two bits belong
    to entries 4-7, whose low four bits share bytes 8-11.
    """
    packed = blocks[:, 4:16]
    first, second, shared = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (shared & 15) | (first >> 6) << 4), dim=1)
    minimums = torch.cat((second & 63, (shared >> 4) | (second >> 6) << 4), dim=1)
    return (
        (_half(blocks, 0) * scales.float())[:, :, None],
        (_half(blocks, 2) * minimums.float())[:, :, None],
    )


def _q4_k(blocks: Tensor) -> Tensor:
    scales, minimums = _k_scales(blocks)
    q = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return q.float().mul_(scales).sub_(minimums).view(-1, 256)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, minimums = _k_scales(blocks)
    high = _bits(blocks[:, 16:48], 8)
    q = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | high << 4
    return q.float().mul_(scales).sub_(minimums).view(-1, 256)


def _q6_k(blocks: Tensor) -> Tensor:
    # Halves of 128 values: 64 bytes of low nibbles and 32 bytes of high bit pairs each.
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    high = _bits(blocks[:, 128:192].reshape(-1, 32), 4, width=2).view(-1, 2, 4, 32)
    q = (low | high << 4).view(-1, 16, 16)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return (q.float() - 32).mul_(scales[:, :, None]).view(-1, 256)


def _package_format(type_id: int) -> BlockFormat:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        kind = GGMLQuantizationType(type_id)
        num_values, num_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ValueError(f"GGML type {type_id} is unknown") from None

    def expand(blocks: Tensor) -> Tensor:
        try:
            return torch.from_numpy(dequantize(blocks.numpy(), kind)).float()
        except NotImplementedError as error:
            raise ValueError(f"GGML type {kind.name} is not supported: {error}") from None

    return BlockFormat(num_values, num_bytes, expand)


# Keys are GGMLQuantizationType numbers.
_FORMATS = {
    0: BlockFormat(1, 4, _float32),
    1: BlockFormat(1, 2, _float16),
    2: BlockFormat(32, 18, _q4_0),
    3: BlockFormat(32, 20, _q4_1),
    6: BlockFormat(32, 22, _q5_0),
    7: BlockFormat(32, 24, _q5_1),
    8: BlockFormat(32, 34, _q8_0),
    12: BlockFormat(256, 144, _q4_k),
    13: BlockFormat(256, 176, _q5_k),
    14: BlockFormat(256, 210, _q6_k),
    30: BlockFormat(1, 2, _bfloat16),
}
