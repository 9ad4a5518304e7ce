"""Which memory pool a capture uses. torch's graphs are faked: no GPU is needed."""

from __future__ import annotations

import contextlib
import gc
import itertools
from typing import Any

import pytest
import torch

from xllm.hardware.platforms.cuda import CudaGraphs


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pool that each capture asked for."""
    asked: list[Any] = []
    numbers = itertools.count()

    class Graph:
        def __init__(self) -> None:
            self.number = next(numbers)

        def pool(self) -> str:
            return f"pool {self.number}" if asked[-1] is None else asked[-1]

    def record(graph: Graph, pool: Any, capture_error_mode: str) -> Any:
        asked.append(pool)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return asked


def test_graphs_share_one_pool_and_keep_their_output(pools: list[Any]) -> None:
    graphs = CudaGraphs()
    captured = [graphs.capture(lambda n=n: n) for n in range(3)]
    assert [graph.output for graph in captured] == [0, 1, 2]
    assert pools == [None, "pool 0", "pool 0"]


def test_a_pool_is_not_used_again_when_all_its_graphs_are_gone(pools: list[Any]) -> None:
    graphs = CudaGraphs()
    first = [graphs.capture(lambda: None) for _ in range(2)]
    first.clear()
    second = graphs.capture(lambda: None)
    assert pools == [None, "pool 0", None]
    assert second.output is None


def test_the_pool_of_a_capture_that_failed_is_left_alone(pools: list[Any]) -> None:
    graphs = CudaGraphs()
    first = graphs.capture(lambda: 1)
    with pytest.raises(ZeroDivisionError):
        graphs.capture(lambda: 1 // 0)
    second, third = graphs.capture(lambda: 2), graphs.capture(lambda: 3)
    assert pools == [None, "pool 0", None, "pool 2"]
    assert [graph.output for graph in (first, second, third)] == [1, 2, 3]


def test_no_garbage_is_collected_while_work_is_recorded(pools: list[Any]) -> None:
    graphs = CudaGraphs()
    assert graphs.capture(gc.isenabled).output is False
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        graphs.capture(lambda: 1 // 0)
    assert gc.isenabled()
