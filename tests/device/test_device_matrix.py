"""The matrix of ``tests/contract/equivalence`` on a GPU: the CPU's tokens, on every path of a step.

Float32; with graphs and without, with Triton's attention and with the reference's.
"""

from __future__ import annotations

import pytest

from tests.contract.equivalence import tiny_engine
from tests.contract.equivalence.test_equivalence import *  # noqa: F403 - its tests, on a GPU
from tests.contract.equivalence.tiny_engine import Truth, solo_truth
from xllm.core.config import ExecutionConfig
from xllm.hardware.kernels import ops

EXECUTION = {
    "graphs": ExecutionConfig(device="cuda", attention_backend="triton"),
    "eager": ExecutionConfig(device="cuda", attention_backend="triton", enforce_eager=True),
    "reference attention": ExecutionConfig(device="cuda", attention_backend="torch"),
}


@pytest.fixture(scope="module", params=["gemma3_text", "llama"])
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """From the CPU."""
    ops.use_platform("reference")  # ops are bound process-wide
    return solo_truth(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(autouse=True, params=EXECUTION.values(), ids=EXECUTION)
def _on_gpu(request: pytest.FixtureRequest, truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the truth: engines that a test builds run on the GPU."""
    monkeypatch.setattr(tiny_engine, "ExecutionConfig", lambda **_: request.param)
