"""Recorded steps of the CPU: a replay computes what the function would, in shared memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xllm.hardware.graphs import CaptureError
from xllm.hardware.kernels.cpu import native

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")


@pytest.fixture
def graphs():
    from xllm.hardware.kernels.cpu.graph import CpuGraphs

    return CpuGraphs()


def _chain(x: Tensor, weight: Tensor, depth: int) -> Tensor:
    """Kernels of ours around operators of torch: a new tensor, a view, an update in place."""
    from xllm.hardware.kernels.cpu.norm import fused_add_rms_norm, rms_norm

    residual = x * 2
    for _ in range(depth):
        x = rms_norm(x, weight, 1e-6)
        x, residual = fused_add_rms_norm(x.view(-1, 32).view_as(x), residual, weight, 1e-6)
    residual.add_(x)
    return residual + x[:1]


def test_a_replay_computes_from_what_the_inputs_hold_now(graphs) -> None:
    x, weight = torch.randn(3, 64), torch.rand(64)
    graph = graphs.capture(lambda: _chain(x, weight, 4))
    assert torch.equal(graph.output, _chain(x, weight, 4))
    x.normal_()
    expected = _chain(x, weight, 4)
    assert not torch.equal(graph.output, expected)
    graph.replay()
    assert torch.equal(graph.output, expected)


def test_neighbouring_kernels_are_one_step_and_views_none(graphs) -> None:
    x, weight = torch.randn(3, 64), torch.rand(64)
    graph = graphs.capture(lambda: _chain(x, weight, 8))
    assert len(graph._steps) == 4  # x * 2, sixteen norms, add_, the last addition


def test_a_graph_keeps_the_memory_of_its_intermediate_tensors() -> None:
    from xllm.hardware.kernels.cpu.graph import CpuGraphs

    x, weight = torch.randn(300, 4096), torch.rand(4096)
    graph = CpuGraphs().capture(lambda: _chain(x, weight, 2))
    others = [torch.zeros_like(x) for _ in range(16)]  # would lie where freed memory lay
    graph.replay()
    assert not any(other.any() for other in others)
    assert torch.equal(graph.output, _chain(x, weight, 2))


def test_memory_does_not_grow_with_depth_nor_with_graphs(graphs) -> None:
    x, weight = torch.randn(5, 64), torch.rand(64)
    graphs.capture(lambda: _chain(x, weight, 2))
    blocks = len(graphs._memory._blocks)
    deep = [graphs.capture(lambda: _chain(x, weight, 50)) for _ in range(2)]
    assert len(graphs._memory._blocks) == blocks
    for graph in deep:
        graph.replay()
        assert torch.equal(graph.output, _chain(x, weight, 50))


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: float(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
    ],
    ids=["tolist", "numpy", "item", "mask", "nonzero"],
)
def test_what_a_replay_would_not_repeat_is_refused(graphs, work) -> None:
    x = torch.randn(8)
    with pytest.raises(CaptureError, match="host"):
        graphs.capture(lambda: work(x))
    assert torch.equal(graphs.capture(lambda: x * 3).output, x * 3)
