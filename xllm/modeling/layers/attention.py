"""Self-attention over the paged KV cache, without the projections around it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from xllm.hardware.kernels import ops
from xllm.kv_cache.layout import CacheSpec
from xllm.modeling.attention.base import ForwardContext
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.layers.rotary import RotaryTable
from xllm.modeling.layers.target import Target

_CACHE_SCALES = ("k_scale", "v_scale")


class Attention(nn.Module):
    """Per-head norm (where the family has it), rotation, cache write, attention.

    Args:
        layer_id: index of the layer's cache in ``ForwardContext.kv_caches``.
        scale: factor of the query-key products.
        window: keys visible to a query, itself included; 0 is all before it.
        softcap: ``c`` of ``c * tanh(score / c)``; 0 is none.
        sinks: whether each query head has a learned logit that takes part in its softmax and has
            no value; float32, (Hq,).
        q_norm, k_norm: norms over the head dimension, or None. Owned by the caller.
    """

    def __init__(
        self,
        layer_id: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary: RotaryTable,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: bool = False,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = scale
        self.window = window
        self.softcap = softcap
        self.sinks: Tensor | None = None
        if sinks:
            self.sinks = nn.Parameter(torch.empty(num_heads, dtype=torch.float32), False)
        self._rotary = (rotary,)  # in tuples: shared or owned elsewhere, no submodules of ours
        self._norms = (q_norm, k_norm)
        # What an 8-bit cache's keys and values are divided by. Checkpoints may bring them.
        self.cache_scales = dict.fromkeys(_CACHE_SCALES, 1.0)
        self.has_cache_scales = False

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        parent = prefix.rpartition(".")[0]
        for name in _CACHE_SCALES:
            load = functools.partial(self._load_cache_scale, name)
            yield f"{parent}.{name}", Target((), load, optional=True)
        if self.sinks is not None:
            yield f"{parent}.sinks", Target((self.num_heads,), self._load_sinks)

    def after_load(self) -> None:
        pass

    def cache_spec(self, block_size: int, dtype_bytes: int) -> CacheSpec:
        """What this layer's cache holds, in blocks of ``block_size`` tokens."""
        return CacheSpec(
            kind="sliding_window" if self.window else "full",
            block_size=block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype_bytes=dtype_bytes,
            window=self.window or None,
        )

    def forward(self, qkv: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """qkv (T, (Hq + 2 Hk) * D), positions (T,) -> (T, Hq * D); writes the KV cache."""
        metadata = context.metadata[context.group_of_layer[self.layer_id]]
        k_cache, v_cache = context.kv_caches[self.layer_id]
        k_scale, v_scale = 1.0, 1.0
        if k_cache.dtype == torch.float8_e4m3fn:
            k_scale, v_scale = self.cache_scales.values()
        q_norm, k_norm = self._norms
        q = ops.qk_norm_rope_kv_write(
            qkv,
            positions,
            self._rotary[0].cos_sin,
            k_cache,
            v_cache,
            metadata.slot_mapping,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            q_norm.weight if q_norm is not None else None,
            k_norm.weight if k_norm is not None else None,
            q_norm.eps if q_norm is not None else 0.0,
            q_norm.offset if q_norm is not None else 0.0,
            k_scale,
            v_scale,
        )
        out = context.backend.forward(q, self, context)
        return out if v_scale == 1.0 else out.mul_(v_scale)

    def _load_sinks(self, sinks: Tensor) -> None:
        assert self.sinks is not None
        self.sinks.copy_(sinks)

    def _load_cache_scale(self, name: str, value: Tensor) -> None:
        scale = float(value)
        if not (math.isfinite(scale) and scale > 0.0):
            raise ValueError(f"{name} of layer {self.layer_id} must be above 0, got {scale:g}")
        self.cache_scales[name] = scale
        self.has_cache_scales = True
