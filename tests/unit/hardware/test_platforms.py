"""Finding a platform and what the CPU says about itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from xllm.hardware import platforms
from xllm.hardware.platforms import cgroup, cpu
from xllm.hardware.processor import processor


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown device 'tpu'; known: cpu, cuda"):
        platforms.resolve("tpu")


def test_the_resolved_platform_is_the_current_one() -> None:
    platform = platforms.resolve("cpu")
    assert platforms.current() is platform
    assert platforms.resolve("cpu") is platform
    assert platform.device == torch.device("cpu")


def test_bfloat16_is_the_default_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    platform = platforms.resolve("cpu")
    for flags, dtype in (
        ("avx2 fma", torch.float32),
        ("avx512f avx512_bf16", torch.bfloat16),
        ("avx512f amx_tile amx_bf16", torch.bfloat16),
    ):
        cpuinfo = tmp_path / flags.replace(" ", "_")
        cpuinfo.write_text(f"processor : 0\nmodel name : Thing\nflags : {flags}\n\nprocessor : 1\n")
        monkeypatch.setattr(cpu, "processor", lambda cpuinfo=cpuinfo: processor(cpuinfo))
        assert platform.default_dtype == dtype
        assert "Thing" in platform.description


def test_threads_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for quota, expected in ((None, 8), (2.5, 3), (0.2, 1), (64.0, 8)):
        monkeypatch.setattr(cgroup, "cpu_quota", lambda quota=quota: quota)
        assert cpu.usable_processors() == expected


def test_memory_is_cut_by_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = platforms.resolve("cpu")
    monkeypatch.setattr(cgroup, "memory_limit", lambda: (1 << 20, (1 << 20) - 4096))
    info = platform.memory_info()
    assert (info.total_bytes, info.free_bytes) == (1 << 20, 4096)
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    whole = platform.memory_info()
    assert whole.total_bytes > whole.free_bytes > 1 << 20
