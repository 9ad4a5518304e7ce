"""The CPU: every machine has one, and small models serve well on it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from xllm.hardware.graphs import GraphApi
from xllm.hardware.platforms import base, cgroup
from xllm.hardware.processor import processor


class Platform(base.Platform):
    """Runs kernels on the processors that this process may use, in program order."""

    name = "cpu"
    kernels = "cpu"
    collective_backend = "gloo"
    async_device = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._graphs: GraphApi | None = None

    @staticmethod
    def is_available() -> bool:
        return True

    def start(self, num_threads: int = 0) -> None:
        torch.set_num_threads(num_threads or usable_processors())
        from xllm.hardware.kernels import cpu, ops

        cpu.prepare()
        ops.use_platform(self.kernels)

    @property
    def graphs(self) -> GraphApi:  # type: ignore[override]
        """Recorded kernel calls (``kernels.cpu.graph``)."""
        if self._graphs is None:
            from xllm.hardware.kernels.cpu.graph import CpuGraphs

            self._graphs = CpuGraphs()
        return self._graphs

    def memory_info(self) -> base.MemoryInfo:
        total, free = _system_memory()
        limit = cgroup.memory_limit()
        if limit is not None:
            total = min(total, limit[0])
            free = min(free, limit[0] - limit[1])
        return base.MemoryInfo(total_bytes=total, free_bytes=max(free, 0))

    @property
    def supports_bf16_compute(self) -> bool:
        return processor().has_bf16

    def synchronize(self) -> None:
        """Nothing to wait for."""

    @property
    def description(self) -> str:
        features = ", ".join(processor().notable_features) or "no vector extensions known"
        return f"{processor().model}, {torch.get_num_threads()} threads, {features}"


def usable_processors() -> int:
    """Processors this process may use: its affinity, cut by the control group's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _system_memory() -> tuple[int, int]:
    """Total and available bytes of the machine."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields[key] = int(value.split()[0]) * 1024
    return fields["MemTotal"], fields["MemAvailable"]
