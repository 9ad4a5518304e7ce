"""Safetensors checkpoints that stack all experts of a layer: read one expert at a time.

``X.experts.down_proj`` (E, I, H) is offered as ``X.experts.0.down_proj`` (I, H) and so on. Experts
in MXFP4 (``_blocks`` and ``_scales``) are offered as the weights that they stand for. So a layer
of many experts is never in memory twice, nor a quantized one expanded as a whole.

Shapes: E experts, N outputs, G groups of 32 inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from xllm.modeling.weights.safetensors import SafetensorsCheckpoint

_STACKED = re.compile(r"(.+\.experts)\.((?:gate_up|down)_proj(?:_bias)?)(_blocks|_scales)?")
_GROUP = 32
# The values of a 4-bit float: a sign, two bits of exponent, one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """One expert of a stacked tensor, or of the two of MXFP4."""

    stored: str
    expert: int
    scales: str | None = None


class StackedCheckpoint(SafetensorsCheckpoint):
    """Implements ``Checkpoint``. Tensors that are not stacked come as they are.

    Raises:
        ValueError: as its base; or blocks and scales of MXFP4 do not belong together.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        self._parts: dict[str, _Part] = {}
        for stored in list(self._shapes):
            if match := _STACKED.fullmatch(stored):
                self._unstack(stored, *match.groups())

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}

            def rows(stored: str, expert: int) -> Tensor:
                path = self._path_of[stored]
                if path not in files:
                    files[path] = stack.enter_context(safe_open(path, framework="pt"))
                return files[path].get_slice(stored)[expert]

            plain = []
            for name in names:
                part = self._parts.get(name)
                if part is None:
                    plain.append(name)
                elif part.scales is None:
                    self._check_float(part.stored)
                    yield name, rows(part.stored, part.expert)
                else:
                    blocks = rows(part.stored, part.expert)
                    yield name, dequantize_mxfp4(blocks, rows(part.scales, part.expert)).T
        yield from super().tensors(plain)

    def _unstack(self, stored: str, parent: str, name: str, suffix: str | None) -> None:
        if suffix == "_scales":  # with its blocks
            if f"{parent}.{name}_blocks" not in self._path_of:
                raise ValueError(f"tensor {stored} has no {name}_blocks beside it")
            return
        count, *shape = self._shapes[stored]
        num_bytes, scales = self._bytes[stored], None
        if suffix == "_blocks":
            scales = f"{parent}.{name}_scales"
            if self._shapes.get(scales) != (count, *shape[:-1]) or shape[-1:] != [_GROUP // 2]:
                raise ValueError(
                    f"tensor {stored} of shape {[count, *shape]} needs {_GROUP // 2} bytes for "
                    f"each of its {name}_scales"
                )
            num_bytes += self._bytes[scales]
            # Inputs first, as such checkpoints store what is not quantized.
            shape = [math.prod(shape[1:]) * 2, shape[0]]
        for expert in range(count):
            part = f"{parent}.{expert}.{name}"
            self._parts[part] = _Part(stored, expert, scales)
            self._shapes[part] = tuple(shape)
            self._bytes[part] = num_bytes // count
        for consumed in filter(None, (stored, scales)):
            del self._shapes[consumed]


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks (N, G, 16) and scales (N, G), uint8 -> (N, 32 G) bfloat16, which holds them exactly.

    A byte holds two 4-bit floats, the first one low; a scale is the exponent of a power of two,
    127 more than it (OCP Microscaling Formats 1.0). On the default device.
    """
    device = torch.get_default_device()
    blocks, scales = blocks.to(device), scales.to(device)
    values = torch.tensor((*_MAGNITUDES, *(-m for m in _MAGNITUDES)), dtype=torch.bfloat16)
    every = torch.arange(256)
    pairs = torch.stack((values[every & 15], values[every >> 4]), dim=1)
    # Two bfloat16 at a time, as one int32.
    expanded = pairs.view(torch.int32).view(256)[blocks.int()].view(torch.bfloat16)
    exponents = scales.int()
    factors = torch.where(exponents > 0, exponents << 23, 1 << 22).view(torch.float32)
    return expanded.mul_(factors.to(torch.bfloat16).unsqueeze(-1)).flatten(1)
