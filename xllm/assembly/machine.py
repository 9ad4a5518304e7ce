"""What this machine offers to an engine, for ``xllm doctor``."""

from __future__ import annotations

import dataclasses

from xllm.hardware.kernels.cpu.native import compiler
from xllm.hardware.platforms import resolve

_DEVICES = ("cuda", "cpu")

__all__ = ["Device", "compiler", "devices"]


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One kind of device; ``missing`` says why it cannot be used."""

    name: str
    description: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    missing: str | None = None


def devices() -> list[Device]:
    """Every kind of device that xLLM knows, the preferred first. Imports torch."""
    return [_device(name) for name in _DEVICES]


def _device(name: str) -> Device:
    try:
        platform = resolve(name)
    except ValueError as error:
        return Device(name, missing=str(error))
    memory = platform.memory_info()
    return Device(name, platform.description, memory.total_bytes, memory.free_bytes)
