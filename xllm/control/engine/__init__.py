"""The engine loop: receives requests, steps the scheduler and the worker, sends outputs.
Owns pacing and the exception boundary; knows no sockets, devices or policies.
Public: ``EngineLoop``, ``OverlapEngineLoop``, ``EngineDeadError``, ``Inbox``, ``Outbox``."""

from xllm.control.engine.lifecycle import EngineDeadError, Inbox, Outbox
from xllm.control.engine.loop import EngineLoop
from xllm.control.engine.overlap_loop import OverlapEngineLoop

__all__ = ["EngineDeadError", "EngineLoop", "Inbox", "Outbox", "OverlapEngineLoop"]
