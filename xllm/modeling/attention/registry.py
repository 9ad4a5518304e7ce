"""Finds attention backends by file name."""

from __future__ import annotations

from xllm.modeling.attention.base import AttentionBackend
from xllm.modeling.attention_backends import BACKENDS


def load_backend(name: str) -> AttentionBackend:
    """An instance of the backend in ``attention/<name>.py``.

    Raises:
        ValueError: no such backend; the message lists those that exist.
    """
    backend: AttentionBackend = BACKENDS.load(name).Backend()
    return backend
