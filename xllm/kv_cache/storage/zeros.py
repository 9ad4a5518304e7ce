"""Zeroed tensors whose memory is taken when it is first touched."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch


def zeros_on_demand(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Zeros of ``shape``; on a CPU, pages that nobody writes cost no memory and no time.

    ``torch.zeros`` writes every page, so a 4 GiB cache would take a second and 4 GiB before its
    first request. An anonymous mapping is zero until written and starts on a page border; huge
    pages are asked for where the system offers them.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes)
    if num_bytes >= 1 << 21 and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
