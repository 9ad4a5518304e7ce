"""What the rest of the engine may ask of a device."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xllm.hardware.graphs import GraphApi


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of the memory that holds weights and KV cache, as this process may use it."""

    total_bytes: int
    free_bytes: int


class Platform(ABC):
    """One kind of device. Built by ``platforms.resolve``; ``start`` is called once, before use.

    Attributes:
        name: file name of the platform, which is the device type of torch.
        kernels: folder of ``hardware.kernels`` whose ops it runs.
        device: the torch device.
        collective_backend: ``torch.distributed`` backend between ranks.
        compiles_kernels: kernels are compiled when first launched, unless ``compile_ahead`` did.
        async_device: device work is queued and runs beside the host.
        streams: stream API (current, create, event), or None where work runs in program order.
        graphs: what captures device graphs, or None where there are none.
    """

    name: str
    kernels: str
    device: torch.device
    collective_backend: str
    async_device: bool
    streams: Any = None
    graphs: GraphApi | None = None
    compiles_kernels: bool = False

    @staticmethod
    @abstractmethod
    def is_available() -> bool:
        """Whether this machine has such a device."""

    @abstractmethod
    def start(self, num_threads: int = 0) -> None:
        """Set the process up for the device and begin what takes a while (compiling kernels).

        Args:
            num_threads: host threads for kernels; 0 takes the processors this process may use.
        """

    def compile_ahead(self, works: Sequence[Callable[[], object]]) -> None:  # noqa: B027
        """Compile the kernels that ``works`` launch, together: for ``compiles_kernels``.

        Work is called without its kernels being run: it must not depend on their results.
        """

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Memory now."""

    @property
    @abstractmethod
    def supports_bf16_compute(self) -> bool:
        """Whether matrix products in bfloat16 are faster than in float32."""

    @property
    def supports_fp8(self) -> bool:
        """Whether the device computes with 8-bit floats."""
        return False

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def responds(self) -> bool:
        """Whether the device still computes, asked after an error; waits for queued work.

        Some errors (an illegal address, say) end a device's context: every later call fails too.
        """
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for start-up and ``xllm doctor``: model, cores, instruction sets."""

    @property
    def default_dtype(self) -> torch.dtype:
        """What ``--dtype auto`` means here."""
        return torch.bfloat16 if self.supports_bf16_compute else torch.float32
