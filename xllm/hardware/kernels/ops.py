"""Every op that layers call: name, shapes, dtype, error. ``use_platform`` decides what runs.

Call as ``ops.name(...)``: the module's attributes are rebound, so a name imported from here would
keep its old meaning. Shapes: T tokens, H hidden, S rows, B blocks per row, N outputs, K inputs,
Hq/Hk query/KV heads, D head dimension. Float tensors share one dtype (float32, bfloat16 or
float16) unless told. No op copies the KV cache.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from torch import Tensor

# The file of each op, in ``reference`` and in the platforms' folders.
_FILES = {
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "fused_add_rms_norm",
    "act_and_mul": "act_and_mul",
    "qk_norm_rope_kv_write": "qk_norm_rope_kv_write",
    "paged_attention": "paged_attention",
    "pack_linear": "linear",
    "linear": "linear",
}
OPS = tuple(_FILES)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x (..., H), weight (H,) -> ``x / rms(x) * (offset + weight)``, computed in float32."""
    raise AssertionError("ops.use_platform was not called")


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``residual += x`` in place, then its norm. x, residual (T, H) -> (normed, residual)."""
    raise AssertionError("ops.use_platform was not called")


def act_and_mul(gate_up: Tensor, activation: str) -> Tensor:
    """gate_up (T, 2I) -> ``activation(gate) * up`` (T, I); silu, gelu or gelu_tanh.

    Raises:
        ValueError: another activation.
    """
    raise AssertionError("ops.use_platform was not called")


def qk_norm_rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    offset: float = 0.0,
) -> Tensor:
    """Norm q and k per head where weights (D,) are given, rotate them, write k and v.

    Args:
        qkv: (T, (Hq + 2 Hk) * D), rows contiguous.
        positions: (T,) int64.
        cos_sin: (max_pos, rot) float32, cosines then sines; the first ``rot`` dimensions of each
            head turn, NeoX order (pairs are ``rot / 2`` apart).
        k_cache: (num_blocks, block_size, Hk, D), any strides but a contiguous D; v_cache alike.
        slot_mapping: (T,) int64, ``block * block_size + offset``; negative: do not write.

    Returns:
        q (T, Hq, D).
    """
    raise AssertionError("ops.use_platform was not called")


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    max_query_len: int = 1,
) -> Tensor:
    """Causal grouped-query attention over the paged cache, for decode rows and chunks alike.

    Args:
        q: (T, Hq, D).
        k_cache: (num_blocks, block_size, Hk, D), holding this step's keys already; v_cache alike.
        query_start_loc: (S + 1,) int32; row i owns tokens ``[i] .. [i + 1]``, which are its last.
        seq_lens: (S,) int32, keys of each row.
        block_table: (S, B) int32. Entries left of every query's window are not read.
        softcap: scores become ``softcap * tanh(scores / softcap)`` unless 0.
        window: a query at p sees keys ``p - window < j <= p``; 0 sees all.
        max_query_len: largest number of query tokens in a row.

    Returns:
        (T, Hq * D); tokens that belong to no row are undefined.
    """
    raise AssertionError("ops.use_platform was not called")


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> Any:
    """Lay a weight (N, K) out as the platform's ``linear`` wants it.

    int8 weights come with ``scale`` (N,) float32: the weight is ``int8 * scale``.
    """
    raise AssertionError("ops.use_platform was not called")


def linear(x: Tensor, packed: Any, bias: Tensor | None = None) -> Tensor:
    """x (T, K) times a packed weight (N, K), plus bias (N,) -> (T, N)."""
    raise AssertionError("ops.use_platform was not called")


def use_platform(name: str) -> None:
    """Bind every op to ``kernels/<name>/<op file>.py``, or to the reference where there is none.

    Process-wide: a worker process has one device.

    Raises:
        ValueError: no such kernel folder.
    """
    package = f"{__package__}.{name}"
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"unknown kernel platform {name!r}")
    for op, file in _FILES.items():
        own = f"{package}.{file}"
        source = own if importlib.util.find_spec(own) else f"{__package__}.reference.{file}"
        globals()[op] = getattr(importlib.import_module(source), op)


use_platform("reference")
