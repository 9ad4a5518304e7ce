"""Worker handles as the engine sees them.
Owns the protocol between the engine loop and whatever computes steps; knows no device.
Public: ``WorkerPort``, ``PendingStep``."""

from xllm.control.workers.port import PendingStep, WorkerPort

__all__ = ["PendingStep", "WorkerPort"]
