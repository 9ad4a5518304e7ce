"""The CPU: number formats, threads and memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from xllm.hardware.kernels import ops
from xllm.hardware.platforms.base import MemoryInfo

_CGROUP = Path("/sys/fs/cgroup")


class CpuPlatform:
    """The processors and memory of this process, within its cgroup's limits."""

    name = "cpu"
    device = torch.device("cpu")
    kernels = "cpu"
    attention_backend = "torch"
    collective_backend = "gloo"
    async_device = False
    graphs = None

    def start(self, num_threads: int) -> None:
        """Bind the CPU kernels and set the number of threads."""
        torch.set_num_threads(num_threads or usable_processors())
        ops.use_platform(self.kernels)

    def fast_dtype(self) -> torch.dtype:
        """bfloat16 where the processor multiplies it natively (AMX, AVX512-BF16), else float32."""
        flags = cpu_flags()
        return torch.bfloat16 if flags & {"amx_bf16", "avx512_bf16"} else torch.float32

    def memory_info(self) -> MemoryInfo:
        """The machine's memory, or the cgroup's where that is smaller."""
        fields = {}
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _colon, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
        total, free = fields["MemTotal"], fields["MemAvailable"]
        limit, used = _read_int("memory.max"), _read_int("memory.current")
        if limit is not None and used is not None and limit < total:
            total, free = limit, min(free, limit - used)
        return MemoryInfo(total, max(0, free))


def create() -> CpuPlatform:
    """The platform, as ``resolve`` wants it."""
    return CpuPlatform()


def usable_processors() -> int:
    """Processors that the scheduler's affinity mask and the cgroup's quota allow, at least one."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def cpu_flags() -> frozenset[str]:
    """Feature flags of the first processor, as the kernel names them."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _read_int(name: str) -> int | None:
    """A number of this process's cgroup, None when there is none or no limit."""
    try:
        return int((_CGROUP / name).read_text())
    except (OSError, ValueError):
        return None
