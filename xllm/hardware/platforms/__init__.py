"""Platforms: what a device is and what it offers, one file per kind, found by name.

Owns devices, threads and memory figures. Does not own tensors or kernels.
Public: ``resolve``, ``current``, ``Platform``, ``MemoryInfo``.
"""

from xllm.hardware.platforms.base import MemoryInfo, Platform
from xllm.hardware.platforms.registry import current, resolve

__all__ = ["MemoryInfo", "Platform", "current", "resolve"]
