"""What this machine offers to an engine, for ``xllm doctor``."""

from __future__ import annotations

import dataclasses

from xllm.hardware.kernels.cpu.native import compiler
from xllm.hardware.platforms import resolve
from xllm.modeling.attention import best_backend

_DEVICES = ("cuda", "cpu")

__all__ = ["Device", "compiler", "devices"]


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One kind of device; ``missing`` says why it cannot be used.

    ``attention`` is what ``--attention-backend auto`` takes on it, and ``passed_over`` why nothing
    better, with the command that helps.
    """

    name: str
    description: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    missing: str | None = None
    attention: str = ""
    passed_over: tuple[str, ...] = ()


def devices() -> list[Device]:
    """Every kind of device that xLLM knows, the preferred first. Imports torch."""
    return [_device(name) for name in _DEVICES]


def _device(name: str) -> Device:
    try:
        platform = resolve(name)
    except ValueError as error:
        return Device(name, missing=str(error))
    memory = platform.memory_info()
    attention, reasons = best_backend(name)
    return Device(
        name,
        platform.description,
        memory.total_bytes,
        memory.free_bytes,
        attention=attention,
        passed_over=tuple(f"{better} attention: {why}" for better, why in reasons.items()),
    )
