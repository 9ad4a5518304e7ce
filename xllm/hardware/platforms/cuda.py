"""NVIDIA GPUs of compute capability 8.0 and later."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from xllm.hardware.kernels import ops
from xllm.hardware.platforms import base

_MIN_CAPABILITY = (8, 0)


class CudaGraph:
    """One captured piece of work. ``output`` is what it returned; replays overwrite its tensors."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Any) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        """Queue the work on the current stream."""
        self._graph.replay()


class CudaGraphs:
    """Captures work into graphs that share one memory pool.

    Sharing is sound because graphs are replayed one after the other on one stream, and what a
    graph returns is read before the next one runs.
    """

    on_demand = False

    def __init__(self) -> None:
        self._pool: Any = None  # a handle of torch, None before the first capture
        self._live: weakref.WeakSet[CudaGraph] = weakref.WeakSet()

    def capture(self, work: Callable[[], Any]) -> CudaGraph:
        """Record what ``work`` launches. It must have run before, outside capture, if only under
        ``Platform.compile_ahead``, so that kernels are loaded and libraries initialized."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with _no_collection():
            pool = self._pool if self._live else None  # a pool ends with the last of its graphs
            self._pool = None  # after a capture that fails it would refuse further ones
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                output = work()
        self._pool = graph.pool()
        captured = CudaGraph(graph, output)
        self._live.add(captured)
        return captured


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage may hold graphs and memory, whose release must not fall into a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Platform(base.Platform):
    """One GPU of this process: the current device."""

    name = "cuda"
    kernels = "triton"
    collective_backend = "nccl"
    async_device = True
    compiles_kernels = True

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.graphs = CudaGraphs()

    @staticmethod
    def is_available() -> bool:
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= _MIN_CAPABILITY

    def start(self, num_threads: int = 0) -> None:
        if num_threads:
            torch.set_num_threads(num_threads)
        torch.cuda.set_device(self.device)
        ops.use_platform(self.kernels)
        from xllm.hardware.kernels.triton.compile_ahead import prepare

        prepare()

    def compile_ahead(self, works: Sequence[Callable[[], object]]) -> None:
        from xllm.hardware.kernels.triton.compile_ahead import compile_ahead

        compile_ahead(works, functools.partial(torch.cuda.set_device, self.device))
        torch.cuda.synchronize(self.device)

    def memory_info(self) -> base.MemoryInfo:
        """What the driver reports; memory that torch holds without using it counts as free."""
        free, total = torch.cuda.mem_get_info(self.device)
        stats = torch.cuda.memory_stats(self.device)
        reserved = stats.get("reserved_bytes.all.current", 0)
        used = stats.get("allocated_bytes.all.current", 0)
        return base.MemoryInfo(total_bytes=total, free_bytes=free + reserved - used)

    @property
    def supports_bf16_compute(self) -> bool:
        return True

    @property
    def supports_fp8(self) -> bool:
        return torch.cuda.get_device_capability(self.device) >= (8, 9)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    @property
    def description(self) -> str:
        found = torch.cuda.get_device_properties(self.device)
        return (
            f"{found.name}, {found.total_memory / 2**30:.0f} GiB, "
            f"{found.multi_processor_count} multiprocessors, "
            f"compute capability {found.major}.{found.minor}"
        )
