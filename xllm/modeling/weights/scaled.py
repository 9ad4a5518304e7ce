"""Checkpoints whose linear weights are 8-bit floats (e4m3) with scales beside them.

Read here: ``quant_method`` fp8 (one scale, or one per 128 x 128 block in ``weight_scale_inv``, as
DeepSeek and Qwen publish), compressed-tensors with float weights, fbgemm_fp8. What they say of
activations is not needed: those are quantized as they come. Scales multiply, also where they are
called inverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from xllm.modeling.quantization.base import ScaledTensor
from xllm.modeling.weights.checkpoint import Checkpoint

BLOCK = 128
_SCALES = (".weight_scale_inv", ".weight_scale")
_UNUSED = (".input_scale", ".activation_scale", ".input_scale_ub")
_STRATEGIES = ("tensor", "channel", "block")


def stores_fp8(hf_config: dict[str, Any]) -> bool:
    """Whether a config says that its checkpoint has such weights.

    ``mxfp4`` is about experts alone, which ``weights.stacked`` dequantizes.

    Raises:
        ValueError: it is quantized in another way.
    """
    stored = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if stored is None:
        return False
    stored = stored if isinstance(stored, dict) else {"quant_method": stored}
    method = stored.get("quant_method")
    if method == "mxfp4":
        return False
    if method == "fp8":
        _check_blocks(stored.get("weight_block_size"))
    elif method == "compressed-tensors":
        _check_extras(stored)
        for name, group in (stored.get("config_groups") or {}).items():
            _check_group(name, group.get("weights") or {})
    elif method != "fbgemm_fp8":
        raise ValueError(f"config.json: checkpoints quantized with {method!r} are not supported")
    return True


def _check_extras(stored: dict[str, Any]) -> None:
    """Refuse what would have to be undone beside the scales."""
    sparsity = (stored.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise ValueError(
            f"config.json: compressed-tensors weights must be dense, sparsity_config has the "
            f"format {sparsity!r}"
        )
    if (stored.get("transform_config") or {}).get("config_groups"):
        raise ValueError("config.json: transform_config of compressed-tensors is not supported")


def _check_group(name: str, weights: dict[str, Any]) -> None:
    kind, bits, strategy = (weights.get(field) for field in ("type", "num_bits", "strategy"))
    if (kind, bits) != ("float", 8) or strategy not in _STRATEGIES:
        raise ValueError(
            f"config.json: compressed-tensors weights must be 8-bit floats by "
            f"{', '.join(_STRATEGIES)}; {name} has {bits}-bit {kind} by {strategy}"
        )
    if strategy == "block":
        _check_blocks(weights.get("block_structure"))


def _check_blocks(shape: Any) -> None:
    if shape not in (None, [BLOCK, BLOCK]):
        raise ValueError(f"config.json: weight_block_size must be [{BLOCK}, {BLOCK}], got {shape}")


class ScaledCheckpoint:
    """A checkpoint's weights joined with their scales. Implements ``Checkpoint``.

    Raises:
        ValueError: a scale is missing or has the wrong shape, or a weight is not 8-bit floats.
    """

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner
        self._shapes = dict(inner.shapes())
        self._scale_of: dict[str, str] = {}
        for name in inner.shapes():
            suffix = next((s for s in _SCALES if name.endswith(s)), None)
            weight = f"{name.removesuffix(suffix)}.weight" if suffix else None
            if weight in self._shapes:
                self._scale_of[weight] = name
            if weight in self._shapes or name.endswith(_UNUSED):
                del self._shapes[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def num_bytes(self, name: str) -> int:
        return self._inner.num_bytes(name)

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor | ScaledTensor]]:
        wanted = list(names)
        needed = [self._scale_of[name] for name in wanted if name in self._scale_of]
        scales: dict[str, Tensor] = {}
        for name, scale in self._inner.tensors(needed):
            assert isinstance(scale, Tensor)
            scales[name] = scale.float().clone()  # small; borrowed ones would not last
        for name, tensor in self._inner.tensors(wanted):
            assert isinstance(tensor, Tensor)
            if name in self._scale_of:
                yield name, _join(name, tensor, scales[self._scale_of[name]])
            elif tensor.dtype == torch.float8_e4m3fn:
                raise ValueError(f"the checkpoint has no scale for {name}, which is in 8 bits")
            else:
                yield name, tensor


def _join(name: str, values: Tensor, scale: Tensor) -> ScaledTensor:
    if values.dtype != torch.float8_e4m3fn or values.dim() != 2:
        raise ValueError(
            f"tensor {name} must be a matrix of float8_e4m3fn, as it has a scale; it has shape "
            f"{list(values.shape)} of {str(values.dtype).removeprefix('torch.')}"
        )
    outputs, inputs = values.shape
    if scale.numel() == 1:
        return ScaledTensor(values, scale.reshape(1).expand(outputs))
    if scale.numel() == outputs:
        return ScaledTensor(values, scale.reshape(outputs))
    if tuple(scale.shape) != (-(-outputs // BLOCK), -(-inputs // BLOCK)):
        raise ValueError(
            f"the scale of {name}, of shape {list(values.shape)}, must be one number, one per row "
            f"or one per {BLOCK} x {BLOCK} block; it has shape {list(scale.shape)}"
        )
    return ScaledTensor(values, scale)
