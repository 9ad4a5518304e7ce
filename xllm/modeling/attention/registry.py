"""Finds attention backends by file name."""

from __future__ import annotations

from xllm.core.utils.registry import Registry
from xllm.modeling.attention.base import AttentionBackend

backends = Registry("xllm.modeling.attention", "attention backend", exclude=("base", "registry"))


def load_backend(name: str) -> AttentionBackend:
    """An instance of the backend in ``attention/<name>.py``.

    Raises:
        ValueError: no such backend; the message lists those that exist.
    """
    backend: AttentionBackend = backends.load(name).Backend()
    return backend
