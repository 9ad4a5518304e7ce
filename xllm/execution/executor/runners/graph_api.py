"""What a platform offers to the runners that replay device graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


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

    def capture(self, work: Callable[[], Any]) -> Graph: ...
