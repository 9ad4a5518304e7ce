"""What a device offers, one file per kind: streams, memory, graphs, number formats.

Public: ``Platform``, ``resolve(device)``, ``current()``.
"""

from xllm.hardware.platforms.base import Platform, current, resolve

__all__ = ["Platform", "current", "resolve"]
