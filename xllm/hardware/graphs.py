"""Device graphs: work that is recorded once and repeated without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class CaptureError(RuntimeError):
    """Work that a graph cannot repeat; the message says what in it. It runs eagerly instead."""


class Graph(Protocol):
    """Captured work; a replay overwrites the tensors of ``output``."""

    output: Any

    def replay(self) -> None: ...


class GraphApi(Protocol):
    """What a platform offers as ``graphs``.

    ``on_demand``: a capture costs about one run and computes it too, so graphs are captured when
    they are first needed and for the exact number of rows.
    """

    on_demand: bool

    def capture(self, work: Callable[[], Any]) -> Graph:
        """Record what ``work`` computes.

        Raises:
            CaptureError: it cannot be repeated.
        """
        ...
