"""Memory of a process, as the operating system counts it."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes(pid: int | None) -> int:
    """Resident memory of a process in bytes; 0 when it is gone or the system does not say."""
    if pid is None:
        return 0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()
