"""The ops as torch custom ops (``torch.ops.xllm``) with fake implementations, for tracers.

Eager execution on the CPU never comes here: a dispatch costs as much as a small kernel.
Packed weights are opaque to the dispatcher, so they pass as handles: integers that stay valid for
the life of the process, like the weights of a traced model. ``into`` stops here: tracers see plain
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SCHEMAS = {
    "rms_norm": "(Tensor x, Tensor weight, float eps, float offset) -> Tensor",
    "fused_add_rms_norm": (
        "(Tensor x, Tensor(a!) residual, Tensor weight, float eps, float offset) -> Tensor"
    ),
    "act_and_mul": "(Tensor gate_up, str activation) -> Tensor",
    "qk_norm_rope_kv_write": (
        "(Tensor qkv, Tensor positions, Tensor cos_sin, Tensor(a!) k_cache, Tensor(b!) v_cache,"
        " Tensor slot_mapping, int num_q_heads, int num_kv_heads, int head_dim, Tensor? q_weight,"
        " Tensor? k_weight, float eps, float offset, float k_scale, float v_scale) -> Tensor"
    ),
    "paged_attention": (
        "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor query_start_loc, Tensor seq_lens,"
        " Tensor block_table, float scale, float softcap, int window, int max_query_len,"
        " Tensor? sinks) -> Tensor"
    ),
    "linear": "(Tensor x, int handle, int out_features, Tensor? bias) -> Tensor",
}

_LIBRARY = torch.library.Library("xllm", "DEF")
_implementations: dict[str, Callable[..., Any]] = {}
_packed_weights: list[Any] = []
_handles: dict[int, int] = {}


def wrap(implementations: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Functions with the signatures of ``ops`` that reach ``implementations`` by dispatch."""
    _implementations.update(implementations)
    return {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "act_and_mul": _act_and_mul,
        "qk_norm_rope_kv_write": _qk_norm_rope_kv_write,
        "paged_attention": _paged_attention,
        "pack_linear": _pack_linear,
        "linear": _linear,
    }


def _rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, into: Any = None
) -> Tensor:
    return torch.ops.xllm.rms_norm(x, weight, eps, offset)


def _fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tensor, Tensor]:
    return torch.ops.xllm.fused_add_rms_norm(x, residual, weight, eps, offset), residual


def _act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor:
    return torch.ops.xllm.act_and_mul(gate_up, activation)


def _qk_norm_rope_kv_write(
    *args: Any, offset: float = 0.0, k_scale: float = 1.0, v_scale: float = 1.0
) -> Tensor:
    rest = (offset, k_scale, v_scale)[len(args) - 12 :]
    return torch.ops.xllm.qk_norm_rope_kv_write(*args, *rest)


def _paged_attention(
    *args: Any,
    softcap: float = 0.0,
    window: int = 0,
    max_query_len: int = 1,
    sinks: Tensor | None = None,
) -> Tensor:
    rest = (softcap, window, max_query_len, sinks)[len(args) - 7 :]
    return torch.ops.xllm.paged_attention(*args, *rest)


def _pack_linear(weight: Tensor, scale: Tensor | None = None) -> Any:
    packed = _implementations["pack_linear"](weight, scale)
    _handles[id(packed)] = len(_packed_weights)
    _packed_weights.append(packed)
    return packed


def _linear(x: Tensor, packed: Any, bias: Tensor | None = None) -> Tensor:
    return torch.ops.xllm.linear(x, _handles[id(packed)], packed.out_features, bias)


def _run_linear(x: Tensor, handle: int, out_features: int, bias: Tensor | None) -> Tensor:
    return _implementations["linear"](x, _packed_weights[handle], bias)


def _run_fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> Tensor:
    return _implementations["fused_add_rms_norm"](x, residual, weight, eps, offset)[0]


def _runner(op: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return _implementations[op](*args)

    return run


def _fake_act_and_mul(gate_up: Tensor, activation: str) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


def _fake_rope(qkv: Tensor, *args: Any) -> Tensor:
    num_q_heads, head_dim = args[5], args[7]
    return qkv.new_empty((qkv.shape[0], num_q_heads, head_dim))


def _fake_linear(x: Tensor, handle: int, out_features: int, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _register() -> None:
    fakes: dict[str, Callable[..., Any]] = {
        "rms_norm": lambda x, *_: torch.empty_like(x),
        "fused_add_rms_norm": lambda x, *_: torch.empty_like(x),
        "act_and_mul": _fake_act_and_mul,
        "qk_norm_rope_kv_write": _fake_rope,
        "paged_attention": lambda q, *_: q.new_empty((q.shape[0], q.shape[1] * q.shape[2])),
        "linear": _fake_linear,
    }
    runners = {"linear": _run_linear, "fused_add_rms_norm": _run_fused_add_rms_norm}
    for op, schema in _SCHEMAS.items():
        _LIBRARY.define(op + schema)
        _LIBRARY.impl(op, runners.get(op) or _runner(op), "CompositeExplicitAutograd")
        torch.library.register_fake(f"xllm::{op}", fakes[op], lib=_LIBRARY)


_register()
