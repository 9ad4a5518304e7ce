"""Platforms: what a device is and what it offers, one file per kind, found by name.

Owns devices, threads and memory figures. Does not own tensors or kernels.
Public: ``resolve``, ``current``, ``Platform``, ``MemoryInfo``, ``CaptureError``.
"""

from xllm.hardware.platforms.base import CaptureError, MemoryInfo, Platform
from xllm.hardware.platforms.registry import current, resolve

__all__ = ["CaptureError", "MemoryInfo", "Platform", "current", "resolve"]
