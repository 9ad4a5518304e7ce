"""What the planes above may ask of a device."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch

from xllm.core.utils.registry import Registry


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of the device in bytes."""

    total_bytes: int
    free_bytes: int


class Platform(Protocol):
    """One kind of device in this process."""

    name: str
    device: torch.device
    kernels: str  # folder of ``hardware.kernels``
    attention_backend: str  # preferred, by name
    collective_backend: str  # of torch.distributed
    async_device: bool  # whether work is queued and results come later
    graphs: Any | None  # the GraphApi, where the device has graphs

    def start(self, num_threads: int) -> None:
        """Set the process up for the device; ``num_threads`` 0 takes what it may use."""
        ...

    def fast_dtype(self) -> torch.dtype:
        """The type that ``--dtype auto`` takes: the narrowest that the device computes fast."""
        ...

    def memory_info(self) -> MemoryInfo:
        """Memory now."""
        ...


_platforms = Registry("xllm.hardware.platforms", "device", exclude=("base",))
_current: list[Platform] = []


def resolve(device: str) -> Platform:
    """The platform of ``--device``; auto takes an accelerator that is there, else the CPU.

    Raises:
        ValueError: unknown device, or one that this machine lacks.
    """
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kind = accelerator.type if accelerator is not None else "cpu"
        device = kind if kind in _platforms else "cpu"
    platform: Platform = _platforms.load(device).create()
    _current[:] = [platform]
    return platform


def current() -> Platform:
    """The platform of the last ``resolve`` in this process."""
    assert _current, "platforms.resolve was not called"
    return _current[0]
