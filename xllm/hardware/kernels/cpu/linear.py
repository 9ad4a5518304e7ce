"""Linear layers on the CPU: weights in panels of sixteen outputs (``csrc/weights.h``)."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.cpu.activation import KINDS, act_and_mul
from xllm.hardware.kernels.cpu.call import DTYPES, entry, pointer

_linear = entry("xllm_linear")
_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
# x, weight, scale, bias, out, tokens, k, padded_k, n, format, dtype, gate
_pack = struct.Struct("=12q").pack
_LANES = 16
# Fewer rows are bound by reading the weight, and may be streamed, which knows no gates.
_MIN_GATED_ROWS = 33


@dataclasses.dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight (N, K) in panels, padded with zeros; scales padded to whole panels."""

    panels: Tensor
    scale: Tensor | None
    in_features: int
    padded_k: int
    out_features: int
    format: int


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> Any:
    """See ``ops.pack_linear``."""
    if (weight.dtype == torch.int8) != (scale is not None) or weight.dtype not in _FORMATS:
        return reference.pack_linear(weight, scale)
    n, k = weight.shape
    unit = 2 if weight.dtype == torch.float32 else 32
    padded_n, padded_k = -(-n // _LANES) * _LANES, -(-k // unit) * unit
    if (padded_n, padded_k) != (n, k):
        padded = weight.new_zeros((padded_n, padded_k))
        padded[:n, :k] = weight
        weight = padded
    panels = weight.view(padded_n // _LANES, _LANES, padded_k // 2, 2)
    pairs_last = weight.dtype == torch.bfloat16
    panels = panels.permute(0, 2, 1, 3) if pairs_last else panels.permute(0, 2, 3, 1)
    if scale is not None:
        scale = torch.nn.functional.pad(scale.float(), (0, padded_n - n))
    return PackedLinear(panels.contiguous(), scale, k, padded_k, n, _FORMATS[weight.dtype])


def linear(x: Tensor, packed: Any, bias: Tensor | None = None) -> Tensor:
    """See ``ops.linear``."""
    dtype = DTYPES.get(x.dtype)
    if dtype is None or not isinstance(packed, PackedLinear):
        return _other(x, packed, bias)
    out = x.new_empty((x.shape[0], packed.out_features))
    _run(x, packed, bias, out, dtype, -1)
    return out


def gated_linear(
    x: Tensor, packed: Any, bias: Tensor | None, activation: str, into: Any = None
) -> Tensor:
    """See ``ops.gated_linear``."""
    dtype, kind = DTYPES.get(x.dtype), KINDS.get(activation)
    if (
        x.shape[0] < _MIN_GATED_ROWS
        or dtype is None
        or kind is None
        or not isinstance(packed, PackedLinear)
        or packed.out_features % (2 * _LANES)
    ):
        return act_and_mul(linear(x, packed, bias), activation)
    out = x.new_empty((x.shape[0], packed.out_features // 2))
    _run(x, packed, bias, out, dtype, kind)
    return out


def _run(
    x: Tensor, packed: PackedLinear, bias: Tensor | None, out: Tensor, dtype: int, gate: int
) -> None:
    _linear(
        _pack(
            *(x.data_ptr(), packed.panels.data_ptr(), pointer(packed.scale), pointer(bias)),
            *(out.data_ptr(), x.shape[0], packed.in_features, packed.padded_k),
            *(packed.out_features, packed.format, dtype, gate),
        )
    )


def _other(x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
    """Dtypes without kernels: float16 activations or weights."""
    if not isinstance(packed, PackedLinear):
        return reference.linear(x, packed, bias)
    wide = linear(x.float(), packed, None if bias is None else bias.float())
    return wide.to(x.dtype)
