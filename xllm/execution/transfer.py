"""From host arrays to the device, without waiting.

A copy from memory that is not pinned waits for all that was queued before it, and the device then
for the host: never copy to a device by ``Tensor.to`` alone in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNMENT = 16


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """``array`` on ``device``; on a CPU the tensor shares its memory."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """The arrays on ``device``, with their shapes and dtypes.

    On a CPU the tensors share the arrays' memory. Elsewhere the arrays are packed into one pinned
    buffer and copied once, without waiting; the caching host allocator reuses the buffer only after
    the copy.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    host = torch.empty(end, dtype=torch.uint8, pin_memory=True)
    packed = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    on_device = host.to(device, non_blocking=True)
    return [
        on_device[start : start + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]
