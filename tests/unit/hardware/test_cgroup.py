"""Limits of control groups, read from a made-up file tree."""

from __future__ import annotations

from pathlib import Path

from xllm.hardware.platforms import cgroup


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _self_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "self"
    path.write_text(text)
    return path


def test_version_2_takes_the_tightest_group_up_to_the_mount(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _write(
        root,
        {
            "a/b/cpu.max": "max 100000\n",
            "a/cpu.max": "150000 100000\n",
            "a/b/memory.max": "1000000\n",
            "a/b/memory.current": "700000\n",
            "a/b/memory.stat": "anon 5\ninactive_file 200000\n",
            "a/memory.max": "max\n",
        },
    )
    self_file = _self_file(tmp_path, "0::/a/b\n")
    assert cgroup.cpu_quota(root, self_file) == 1.5
    assert cgroup.memory_limit(root, self_file) == (1000000, 500000)


def test_version_1_reads_its_controllers_mounts(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _write(
        root,
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "memory/job/memory.limit_in_bytes": "4096000\n",
            "memory/job/memory.usage_in_bytes": "96000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "1\n",
        },
    )
    self_file = _self_file(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n")
    assert cgroup.cpu_quota(root, self_file) == 0.5
    assert cgroup.memory_limit(root, self_file) == (4096000, 96000)


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _write(root, {"cpu.max": "200000 100000\n"})
    assert cgroup.cpu_quota(root, _self_file(tmp_path, "0::/docker/0123\n")) == 2.0


def test_no_groups_no_limits(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path, tmp_path / "absent") is None
    assert cgroup.memory_limit(tmp_path, tmp_path / "absent") is None
