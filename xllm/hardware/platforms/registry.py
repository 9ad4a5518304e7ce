"""Finds the platform for a device name and remembers the one in use."""

from __future__ import annotations

from xllm.core.utils.registry import Registry
from xllm.hardware.platforms.base import Platform

_registry = Registry(
    "xllm.hardware.platforms", "device", exclude=("base", "registry", "cgroup", "processor")
)
_current: Platform | None = None


def resolve(device: str = "auto") -> Platform:
    """The platform of ``device``, which becomes the current one.

    Args:
        device: a platform's name, or ``auto``: the first available one that is not the CPU,
            else the CPU.

    Raises:
        ValueError: no such platform, or this machine has no such device.
    """
    global _current
    name = _first_available() if device == "auto" else device
    platform = _registry.load(name).Platform
    if not platform.is_available():
        raise ValueError(f"device {name!r} is not available on this machine")
    if _current is None or _current.name != name:
        _current = platform()
    return _current


def current() -> Platform:
    """The platform in use; resolves ``auto`` when none was chosen."""
    return _current if _current is not None else resolve()


def _first_available() -> str:
    others = (name for name in _registry.names() if name != "cpu")
    return next((n for n in others if _registry.load(n).Platform.is_available()), "cpu")
