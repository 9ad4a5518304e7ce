"""The worker, seen from the engine loop. ``execution.worker.Worker`` fits it by shape."""

from __future__ import annotations

from typing import Protocol

from xllm.core.messages.worker import StepPlan, StepResult, WorkerStats
from xllm.kv_cache.layout import WorkerInfo


class PendingStep(Protocol):
    """A step that was handed to the device."""

    def result(self) -> StepResult:
        """Wait for the step and return its results; arrays belong to the caller.

        Raises:
            Exception: the step failed as a whole.
        """
        ...


class WorkerPort(Protocol):
    """Computes steps, in the order of ``execute``."""

    @property
    def healthy(self) -> bool:
        """Whether further steps can be executed after one that raised."""
        ...

    def start(self) -> WorkerInfo:
        """Load the model and allocate the cache. Blocks."""
        ...

    def execute(self, plan: StepPlan) -> PendingStep:
        """Queue a step on the device; a device without queues computes it here.

        Raises:
            Exception: the step failed as a whole.
        """
        ...

    def read_adapter(self, folder: str) -> object:
        """Read a LoRA adapter's files, for ``load_adapter``. Blocks; on any thread.

        Raises:
            ValueError: there are no adapters here, or this is none.
        """
        ...

    def load_adapter(self, adapter: int, weights: object) -> None:
        """Take over what ``read_adapter`` brought, between two steps.

        Raises:
            ValueError: it does not fit.
        """
        ...

    def unload_adapter(self, adapter: int) -> None:
        """Forget an adapter that no row uses."""
        ...

    def stats(self) -> WorkerStats:
        """How steps ran. Costs no wait for the device."""
        ...

    def start_profile(self) -> str:
        """Begin to record what the device does; the path of the trace to come.

        Raises:
            ValueError: it cannot be recorded.
        """
        ...

    def stop_profile(self) -> str:
        """Write the trace; its path. Blocks.

        Raises:
            ValueError: nothing was recorded.
        """
        ...

    def close(self) -> None:
        """Give back device and memory. Further calls do nothing."""
        ...
