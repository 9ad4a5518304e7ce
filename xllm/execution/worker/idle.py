"""How long the device has nothing to compute between one decode step and the next."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

_WINDOW = 4096  # steps looked back on


class IdleMeter:
    """Measures on the device, by events around each graph, and never waits for it.

    A gap lasts from the end of a step (its results copied to the host) to the launch of the next
    step's graph (its inputs copied to the device). Only steps that overlap count: where the host
    had read a step's results before it queued the next, there was nothing to overlap with.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last_end: torch.Event | None = None
        self._open: deque[tuple[torch.Event, torch.Event]] = deque()
        self._gaps = np.zeros(_WINDOW)
        self._count = 0

    def mark_launch(self) -> None:
        """A decode graph is queued next."""
        if self._device.type == "cpu":
            return
        begin = torch.Event(self._device, enable_timing=True)
        begin.record()
        while self._open and self._open[0][1].query():
            end, launch = self._open.popleft()
            self._gaps[self._count % _WINDOW] = end.elapsed_time(launch) * 1e3
            self._count += 1
        if self._last_end is not None:
            self._open.append((self._last_end, begin))

    def note_end(self, end: torch.Event | None) -> None:
        """The decode step queued last ends with this event; None: what was queued is no such step,
        or its results were read."""
        self._last_end = end

    def percentiles(self) -> tuple[float, float]:
        """Median and 99th percentile of the latest gaps in microseconds; zeros before any."""
        gaps = np.sort(self._gaps[: self._count])
        if not gaps.size:
            return 0.0, 0.0
        # NumPy's own percentiles import its masked arrays: 10 to 60 ms, of the second request.
        return float(gaps[gaps.size // 2]), float(gaps[gaps.size * 99 // 100])
