"""Compiling ahead calls the work, launches no kernel, and leaves Triton as it was."""

from __future__ import annotations

import threading

import pytest
import triton
from triton.runtime.jit import JITFunction

from xllm.hardware.kernels.triton.compile_ahead import compile_ahead


class Compiled:
    """Counts its loads."""

    loads = 0

    @property
    def run(self) -> None:
        self.loads += 1


class FakeKernel(JITFunction):
    """Counts how it is called; compiles nothing."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.compiled = Compiled()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    def run(self, *args, grid, warmup, **kwargs):
        self.calls.append(warmup)
        return self.compiled

    monkeypatch.setattr(JITFunction, "run", run)
    return FakeKernel()


def test_kernels_are_compiled_and_not_launched(kernel: FakeKernel) -> None:
    launched = JITFunction.run
    entered = []
    works = [lambda: kernel[(1,)](), lambda: kernel[(2,)]()]
    compile_ahead(works, lambda: entered.append(threading.get_ident()))
    assert kernel.calls == [True, True]
    assert kernel.compiled.loads == 1
    assert entered and threading.get_ident() not in entered
    assert JITFunction.run is launched
    kernel[(1,)]()
    assert kernel.calls == [True, True, False]


def test_an_error_of_the_work_leaves_triton_as_it_was(kernel: FakeKernel) -> None:
    launched = JITFunction.run
    with pytest.raises(ZeroDivisionError):
        compile_ahead([lambda: 1 // 0])
    assert JITFunction.run is launched
    with triton.AsyncCompileMode(None):  # the mode was left
        pass
