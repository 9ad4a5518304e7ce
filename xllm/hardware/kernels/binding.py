"""Binds the functions of ``ops`` to a platform's implementations.

A platform is a folder beside this file with one module per op family (``OP_FILES``); an op that it
lacks runs the reference, or the ops that it is made of. Its package may export ``ready() -> bool``,
called before the first op: False (say, no compiler) sends all its ops to the reference.
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
    "gated_linear": "linear",
    "linear_add_rms_norm": "linear",
    "route": "route",
    "pack_experts": "moe",
    "apply_experts": "moe",
    "experts_add_rms_norm": "moe",
    "expand_decode": "decode_step",
    "sample_tokens": "sampling",
    "choose_tokens": "choose",
    "mask_logits": "mask",
}

_PACKAGE = __name__.rpartition(".")[0]

Ops = dict[str, Callable[..., Any]]


def bind(namespace: dict[str, Any], declared: Ops, name: str, traceable: bool) -> None:
    """Replace each op in ``namespace`` by one that resolves the platform when first called.

    Args:
        declared: the ops as ``namespace`` defines them. Those without a reference are made of other
            ops of ``namespace``, and stay as they are where the platform has nothing better.
    """
    known = platforms()
    if name not in known:
        raise ValueError(f"unknown kernel platform {name!r}; known: {', '.join(known)}")

    def first_call(op: str, *args: Any, **kwargs: Any) -> Any:
        found = implementations(name)
        if traceable:
            library = importlib.import_module(f"{_PACKAGE}.custom_ops")
            found = {op: found[op] for op in implementations("reference")} | library.wrap(found)
        namespace.update(declared | found)
        return namespace[op](*args, **kwargs)

    for op in OP_FILES:
        namespace[op] = functools.partial(first_call, op)


def implementations(name: str) -> Ops:
    """The ops that the platform ``name`` has, or else the reference, made ready to be called."""
    package = importlib.import_module(f"{_PACKAGE}.{name}")
    if not getattr(package, "ready", lambda: True)():
        name = "reference"
    reference = importlib.import_module(f"{_PACKAGE}.reference")
    found = {op: _own(name, op) or getattr(reference, op, None) for op in OP_FILES}
    return {op: function for op, function in found.items() if function is not None}


def platforms() -> list[str]:
    """Names of the kernel folders."""
    path = importlib.import_module(_PACKAGE).__path__
    return sorted(module.name for module in pkgutil.iter_modules(path) if module.ispkg)


def _own(name: str, op: str) -> Callable[..., Any] | None:
    """The platform's implementation, if it has one."""
    module = f"{_PACKAGE}.{name}.{OP_FILES[op]}"
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), op, None)
