"""The engine as the frontend sees it. The assembly brings the implementations.

Everything here runs on the event loop's thread and never blocks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xllm.core.messages.server import EngineReady, EngineStats, OutputBatch
from xllm.core.request.request import Request


class OutputSink(Protocol):
    """Receives what the engine brings; ``dispatcher.OutputDispatcher`` is the one."""

    def deliver(self, batch: OutputBatch) -> None:
        """Take one step's outputs. Never raises: a faulty request fails alone."""

    def fail(self, message: str) -> None:
        """The engine is dead: every open request ends with this error."""


class EngineClient(Protocol):
    """Sends requests to one engine and hands its outputs to the connected sink."""

    @property
    def ready(self) -> EngineReady | None:
        """What the engine announced, or None while it loads."""

    @property
    def stats(self) -> EngineStats:
        """The latest gauges and counters."""

    @property
    def healthy(self) -> bool:
        """Whether requests may be sent now: loaded, alive and not ending."""

    def connect(self, sink: OutputSink) -> None:
        """Deliver every later output to ``sink``, on the event loop's thread."""

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests for the engine. Handles are unique per client, chosen by the caller.

        Raises:
            RequestError: 503; the engine cannot take requests.
        """

    def begin(self, requests: Sequence[Request]) -> None:
        """Count requests that are answered by others, which say so in ``part_of``.

        Raises:
            RequestError: 503; the engine cannot take requests.
        """

    def end(self, requests: Sequence[Request], reasons: Sequence[str]) -> None:
        """Such requests have ended, for one of ``FINISH_REASONS`` each. Never raises."""

    def abort(self, handles: Sequence[int], choices: Sequence[int], stopped: bool = False) -> None:
        """Stop sequences (choice -1: all of a handle), as in ``core.messages.AbortRequests``.

        Unknown and finished ones are ignored. Never raises, also when the engine is gone.
        """
