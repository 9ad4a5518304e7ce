"""A trace of the worker's steps, for people who look for time."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from torch import profiler

# Events stay in memory until the trace is written: a profile that nobody stops must end itself.
_MAX_STEPS = 1000


class StepProfiler:
    """Records what torch and the device do between ``start`` and ``stop``.

    Args:
        folder: where traces go; None refuses to profile.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        self._profile: profiler.profile | None = None
        self._path = Path()
        self._steps_left = 0

    def start(self) -> Path:
        """Begin; where the trace will be.

        Raises:
            ValueError: profiling is off, under way, or the folder cannot be made.
        """
        if self._folder is None:
            raise ValueError("the server was started without --profiler-dir")
        if self._profile is not None:
            raise ValueError("a profile is being taken")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--profiler-dir {self._folder}: {error.strerror}") from None
        moment = time.strftime("%Y%m%d-%H%M%S")
        self._path = self._folder / f"xllm-{moment}-{os.getpid()}.trace.json.gz"
        self._profile = profiler.profile(
            activities=profiler.supported_activities(),
            # A schedule is what makes torch mark the steps.
            schedule=lambda step: profiler.ProfilerAction.RECORD,
        )
        self._profile.start()
        self._steps_left = _MAX_STEPS
        return self._path

    def step(self) -> None:
        """A step begins: the trace marks it. After ``_MAX_STEPS`` nothing more is recorded."""
        if self._profile is None or not self._steps_left:
            return
        self._steps_left -= 1
        if self._steps_left:
            self._profile.step()
        else:
            self._profile.stop()

    def stop(self) -> Path:
        """End and write the trace, which ``chrome://tracing`` and Perfetto read. Blocks.

        Raises:
            ValueError: no profile is being taken, or the trace cannot be written.
        """
        if self._profile is None:
            raise ValueError("no profile is being taken")
        ended, self._profile = self._profile, None
        if self._steps_left:
            ended.stop()
        try:
            ended.export_chrome_trace(str(self._path))
        except OSError as error:
            raise ValueError(f"{self._path}: {error.strerror}") from None
        del ended
        gc.collect()
        return self._path
