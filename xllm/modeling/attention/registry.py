"""Finds attention backends by file name, and the best one for a platform."""

from __future__ import annotations

from xllm.modeling.attention.base import AttentionBackend
from xllm.modeling.attention_backends import BACKENDS

# What --attention-backend auto tries, the best first; "torch" runs on every platform through ops.
_BEST = {"cuda": ("fa3", "triton")}


def load_backend(name: str) -> AttentionBackend:
    """An instance of the backend in ``attention/<name>.py``.

    Raises:
        ValueError: no such backend, and the message lists those that exist; or this machine lacks
            what it needs.
    """
    try:
        module = BACKENDS.load(name)
    except ImportError as error:
        raise ValueError(f"attention_backend {name!r}: {error}") from error
    backend: AttentionBackend = module.Backend()
    return backend


def best_backend(platform: str) -> tuple[str, dict[str, str]]:
    """The backend for a platform of this name, and why each better one cannot be used here.

    A backend that needs more than its platform has ``missing()`` in its file.
    """
    reasons: dict[str, str] = {}
    for name in _BEST.get(platform, ()):
        missing = getattr(BACKENDS.load(name), "missing", None)
        reason = missing() if missing is not None else None
        if reason is None:
            return name, reasons
        reasons[name] = reason
    return "torch", reasons
