"""A graph API without a device: replays call the recorded work again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


class FakeGraph:
    """Keeps the tensors of the first run, as a device graph keeps its addresses."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.output = work()
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        fresh = self._work()
        for field in dataclasses.fields(fresh):
            getattr(self.output, field.name).copy_(getattr(fresh, field.name))


class FakeGraphs:
    """Remembers every graph in the order of capture."""

    on_demand = False

    def __init__(self) -> None:
        self.captured: list[FakeGraph] = []

    def capture(self, work: Callable[[], Any]) -> FakeGraph:
        self.captured.append(FakeGraph(work))
        return self.captured[-1]

    def of(self, output_type: type) -> list[FakeGraph]:
        """The graphs whose work returns that type."""
        return [graph for graph in self.captured if isinstance(graph.output, output_type)]
