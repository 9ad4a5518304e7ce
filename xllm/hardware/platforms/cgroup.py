"""Limits that control groups put on this process, both cgroup versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
# Version 1 writes "no limit" as a huge number of whole pages.
_UNLIMITED_BYTES = 1 << 60


def cpu_quota(root: Path = _ROOT, self_file: Path = _SELF) -> float | None:
    """Processors' worth of time per period that the tightest group allows, or None."""
    quotas = []
    for group in _groups("cpu", root, self_file):
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            quotas.append(int(fields[0]) / int(fields[1]))
        quota, period = (_number(group / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT, self_file: Path = _SELF) -> tuple[int, int] | None:
    """Limit and use in bytes of the group with the least left, or None without a limit.

    File pages that the kernel would drop under pressure do not count as used.
    """
    found = []
    for group in _groups("memory", root, self_file):
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(group / limit_file), _number(group / usage_file)
            if limit is not None and usage is not None and limit < _UNLIMITED_BYTES:
                usage -= _statistic(group / "memory.stat", cache_key)
                found.append((limit, max(usage, 0)))
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


def _groups(controller: str, root: Path, self_file: Path) -> Iterator[Path]:
    """Folders of this process's groups for ``controller``, innermost first, up to the mount."""
    for line in _read(self_file).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / controllers if controllers else root
        folder = mount / path.lstrip("/")
        # In a container the path may be the host's: then only the mount itself is visible.
        while folder != mount:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _statistic(path: Path, key: str) -> int:
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0
