"""Linear layers. Merged projections are one matrix in memory and several in the checkpoint.

Shapes: T tokens, K input features, N output features.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xllm.hardware.kernels import ops
from xllm.hardware.kernels.tokens import QuantizedTokens, Tokens
from xllm.modeling.layers.norm import RMSNorm
from xllm.modeling.layers.target import Target
from xllm.modeling.quantization.base import QuantMethod


class Adapters(Protocol):
    """What adapters add to a layer's output."""

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        """out (T, N) plus the additions of x (T, K); may be in place."""
        ...


class Linear(nn.Module):
    """``x (T, K) -> x @ weight.T + bias (T, N)``; how ``weight`` is kept is the method's choice.

    Args:
        shards: checkpoint name and rows of each part, in the order of the merged matrix. Names
            replace the last part of the layer's own name. None for an unmerged layer.
    """

    # Storage of the method: filled while loading, then packed.
    weight: Tensor
    scale: Tensor
    packed: Any
    stored_as: QuantMethod
    # Low-rank additions (``layers.lora``), or None.
    adapters: Adapters | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        method: QuantMethod,
        dtype: torch.dtype,
        shards: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.method = method
        self.dtype = dtype
        self.shards = tuple(shards) if shards is not None else None
        assert shards is None or sum(rows for _, rows in shards) == out_features
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), False) if bias else None
        method.create_weights(self)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        parent, _, own_name = prefix.rpartition(".")
        start = 0
        for name, rows in self.shards or ((own_name, self.out_features),):
            path = f"{parent}.{name}" if parent else name
            load = functools.partial(self._load_rows, start)
            shape = (rows, self.in_features)
            yield f"{path}.weight", Target(shape, load, scaled=self.method.takes_scaled)
            if self.bias is not None:
                load = functools.partial(self._load_bias, start)
                yield f"{path}.bias", Target((rows,), load)
            start += rows

    def after_load(self) -> None:
        self.method.after_load(self)

    @property
    def into(self) -> Any:
        """``into`` of the op that makes this layer's input; adapters read the plain input too."""
        return self.packed if self.adapters is None else None

    def forward(self, x: Tokens) -> Tensor:
        out = self.method.apply(self, x)
        if self.adapters is None:
            return out
        assert isinstance(x, Tensor)
        return self.adapters.add(out, x)

    def add_norm(self, x: Tokens, residual: Tensor, norm: RMSNorm) -> tuple[Tokens, Tensor]:
        """``norm.add(self(x), residual)``, for a platform to make one of."""
        if self.adapters is not None:
            return norm.add(self(x), residual)
        return ops.linear_add_rms_norm(
            x, self.packed, self.bias, residual, norm.weight, norm.eps, norm.offset, norm.into
        )

    def _load_rows(self, start: int, weight: Tensor) -> None:
        self.method.load_rows(self, start, weight)

    def _load_bias(self, start: int, bias: Tensor) -> None:
        assert self.bias is not None
        self.bias[start : start + bias.shape[0]].copy_(bias)


class QKVLinear(Linear):
    """Query, key and value projections as one matrix: rows of q, then k, then v."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        q_rows, kv_rows = num_heads * head_dim, num_kv_heads * head_dim
        super().__init__(
            hidden_size,
            q_rows + 2 * kv_rows,
            bias=bias,
            method=method,
            dtype=dtype,
            shards=(("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)),
        )


class GateUpLinear(Linear):
    """Gate and up projections of a gated MLP as one matrix: rows of gate, then up."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(
            hidden_size,
            2 * intermediate_size,
            bias=bias,
            method=method,
            dtype=dtype,
            shards=(("gate_proj", intermediate_size), ("up_proj", intermediate_size)),
        )

    def gated(self, x: Tokens, activation: str, reader: Linear) -> Tensor | QuantizedTokens:
        """x (T, K) -> activation(gate) * up (T, N / 2), which ``reader`` alone reads."""
        if self.adapters is not None:
            return ops.act_and_mul(self(x), activation, reader.into)
        return ops.gated_linear(x, self.packed, self.bias, activation, reader.into)
