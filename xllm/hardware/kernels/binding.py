"""Binds the functions of ``ops`` to a platform's implementations.

A platform is a folder beside this file with one module per op family (``OP_FILES``); an op that it
lacks runs the reference. Its package may export ``ready() -> bool``, called before the first op:
False (say, no compiler) sends all its ops to the reference.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from typing import Any

OP_FILES = {
    "rms_norm": "norm",
    "fused_add_rms_norm": "norm",
    "act_and_mul": "activation",
    "qk_norm_rope_kv_write": "rope",
    "paged_attention": "attention",
    "encoder_attention": "encoder_attention",
    "pack_linear": "linear",
    "linear": "linear",
    "route": "route",
    "pack_experts": "moe",
    "apply_experts": "moe",
    "expand_decode": "decode_step",
    "sample_tokens": "sampling",
    "choose_tokens": "choose",
    "mask_logits": "mask",
}


def _gated_linear(found: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    linear, act_and_mul = found["linear"], found["act_and_mul"]

    def gated_linear(x: Any, packed: Any, bias: Any, activation: str, into: Any = None) -> Any:
        return act_and_mul(linear(x, packed, bias), activation, into)

    return gated_linear


def _linear_add_rms_norm(found: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    linear, add_norm = found["linear"], found["fused_add_rms_norm"]

    def linear_add_rms_norm(x: Any, packed: Any, bias: Any, *norm: Any, **options: Any) -> Any:
        return add_norm(linear(x, packed, bias), *norm, **options)

    return linear_add_rms_norm


def _experts_add_rms_norm(found: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    apply_experts, add_norm = found["apply_experts"], found["fused_add_rms_norm"]

    def experts_add_rms_norm(
        x: Any,
        packed: Any,
        weights: Any,
        experts: Any,
        activation: str,
        *norm: Any,
        **options: Any,
    ) -> Any:
        out = apply_experts(x, packed, weights, experts, activation)
        return add_norm(out, *norm, **options)

    return experts_add_rms_norm


# Ops that are others in a row where a platform has nothing better: op -> (file, composition).
COMPOSED_OPS = {
    "gated_linear": ("linear", _gated_linear),
    "linear_add_rms_norm": ("linear", _linear_add_rms_norm),
    "experts_add_rms_norm": ("moe", _experts_add_rms_norm),
}

_PACKAGE = __name__.rpartition(".")[0]


def bind(namespace: dict[str, Any], name: str, traceable: bool) -> None:
    """Replace each op in ``namespace`` by one that resolves the platform when first called."""
    known = platforms()
    if name not in known:
        raise ValueError(f"unknown kernel platform {name!r}; known: {', '.join(known)}")
    for op in (*OP_FILES, *COMPOSED_OPS):
        namespace[op] = functools.partial(_first_call, namespace, name, traceable, op)


def implementations(name: str) -> dict[str, Callable[..., Any]]:
    """Every op of the platform ``name``, made ready to be called."""
    package = importlib.import_module(f"{_PACKAGE}.{name}")
    if not getattr(package, "ready", lambda: True)():
        name = "reference"
    found = {op: _find(name, op) for op in OP_FILES}
    for op, (file, compose) in COMPOSED_OPS.items():
        found[op] = _own(name, file, op) or compose(found)
    return found


def platforms() -> list[str]:
    """Names of the kernel folders."""
    path = importlib.import_module(_PACKAGE).__path__
    return sorted(module.name for module in pkgutil.iter_modules(path) if module.ispkg)


def _first_call(
    namespace: dict[str, Any], name: str, traceable: bool, op: str, *args: Any, **kwargs: Any
) -> Any:
    found = implementations(name)
    if traceable:
        library = importlib.import_module(f"{_PACKAGE}.custom_ops")
        found = found | library.wrap(found)
        found |= {op: compose(found) for op, (_, compose) in COMPOSED_OPS.items()}
    namespace.update(found)
    return namespace[op](*args, **kwargs)


def _find(name: str, op: str) -> Callable[..., Any]:
    own = _own(name, OP_FILES[op], op)
    return own or getattr(importlib.import_module(f"{_PACKAGE}.reference"), op)


def _own(name: str, file: str, op: str) -> Callable[..., Any] | None:
    """The platform's implementation, if it has one."""
    module = f"{_PACKAGE}.{name}.{file}"
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), op, None)
