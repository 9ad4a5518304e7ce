"""Compiling ahead calls the work, launches no kernel, and leaves Triton as it was."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from concurrent.futures import Future
from unittest import mock

import pytest
import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import cache, driver
from triton.runtime._async_compile import active_mode
from triton.runtime.jit import JITFunction

from tests.fakes.hopper import HopperDriver
from xllm.hardware.kernels import ops
from xllm.hardware.kernels.triton.compile_ahead import compile_ahead, prepare
from xllm.hardware.platforms import cuda

module = importlib.import_module("xllm.hardware.kernels.triton.compile_ahead")


class Compiled:
    """Notes which threads load it; ``fails`` then."""

    function = None

    def __init__(self, fails: bool = False) -> None:
        self.loaded_by: list[int] = []
        self._fails = fails

    @property
    def run(self) -> None:
        self.loaded_by.append(threading.get_ident())
        if self._fails:
            raise RuntimeError("too much shared memory")


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
    assert len(kernel.compiled.loaded_by) == 1
    assert set(kernel.compiled.loaded_by) <= set(entered)
    assert threading.get_ident() not in entered
    assert JITFunction.run is launched
    kernel[(1,)]()
    assert kernel.calls == [True, True, False]


def on_a_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_other_threads_launch_meanwhile(kernel: FakeKernel) -> None:
    compile_ahead([lambda: on_a_thread(lambda: kernel[(1,)]()), lambda: kernel[(1,)]()])
    assert kernel.calls == [False, True]


def test_two_threads_compile_one_after_the_other(kernel: FakeKernel) -> None:
    """The second finds, and leaves, Triton as it was before the first."""
    launched = JITFunction.run
    found: list[object] = []
    second = threading.Thread(
        target=compile_ahead, args=([lambda: found.append(second.is_alive())],)
    )

    def begin() -> None:
        second.start()
        second.join(0.1)
        assert not found

    compile_ahead([begin])
    second.join(10)
    assert found == [True]
    assert JITFunction.run is launched


class CompiledLater(triton.FutureKernel):
    """Counts who asks for the result."""

    def __init__(self) -> None:
        self.kernel = None
        self.future = Future()
        self.num_asked = 0

    def result(self, ignore_errors: bool = False) -> Compiled:
        self.num_asked += 1
        self.kernel, self.future = self.future.result(0), None
        return self.kernel


def test_a_kernel_is_taken_over_by_the_first_launch_after_its_compilation(
    kernel: FakeKernel,
) -> None:
    later = kernel.compiled = CompiledLater()
    asked: list[int] = []

    def launch() -> None:
        kernel[(1,)]()
        asked.append(later.num_asked)

    compile_ahead([launch, lambda: later.future.set_result(Compiled()), launch, launch])
    assert asked == [0, 1, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_a_kernel_is_loaded_where_it_was_compiled_before_others_are(monkeypatch, fails) -> None:
    """What fails then is left to its first launch."""
    modes: list[triton.AsyncCompileMode] = []

    class Mode(triton.AsyncCompileMode):
        def __enter__(self):
            modes.append(self)
            return super().__enter__()

    monkeypatch.setattr(triton, "AsyncCompileMode", Mode)
    entered: list[int] = []
    compiled_by: list[int] = []

    def compile_kernel() -> Compiled:
        compiled_by.append(threading.get_ident())
        return Compiled(fails)

    def launch() -> None:
        kernel = modes[0].executor.submit(compile_kernel).result(10)
        assert kernel.loaded_by == compiled_by

    compile_ahead([launch], lambda: entered.append(threading.get_ident()))
    assert compiled_by == entered


@pytest.mark.parametrize("again", [False, True])
def test_a_kernel_that_did_not_load_is_loaded_by_its_launch(
    again: bool, kernel: FakeKernel, monkeypatch
) -> None:
    """Which reports why it cannot be if that fails ``again``."""
    errors = [RuntimeError("out of memory")] * (1 + again)

    def load_binary(*_: object) -> tuple[object, ...]:
        if errors:
            raise errors.pop()
        return None, 42, 0, 0, 1024

    device = mock.Mock()
    device.utils.get_device_properties.return_value = {"max_shared_mem": 1 << 16}
    device.utils.load_binary = load_binary
    device.get_current_target.return_value.warp_size = 32  # Triton 3.6 asks here
    monkeypatch.setattr(driver, "_active", device)
    compiled = kernel.compiled = object.__new__(CompiledKernel)
    compiled.metadata = mock.Mock(shared=0, tmem_size=None, num_warps=4, warp_size=32)
    compiled.src = compiled.kernel = compiled.name = compiled.metadata_group = compiled.hash = None
    compiled.module = compiled.function = compiled._run = None
    compile_ahead([lambda: kernel[(1,)]()])
    with pytest.raises(RuntimeError, match="out of memory") if again else contextlib.nullcontext():
        assert compiled.run is not None and compiled.function == 42


def test_an_error_of_the_work_leaves_triton_as_it_was(kernel: FakeKernel) -> None:
    launched = JITFunction.run
    with pytest.raises(ZeroDivisionError):
        compile_ahead([lambda: 1 // 0])
    assert JITFunction.run is launched
    with triton.AsyncCompileMode(None):  # the mode was left
        pass


def test_a_compilation_that_fails_leaves_no_mode_behind(monkeypatch) -> None:
    """Another engine of the process may start, or this one again."""

    class Mode(triton.AsyncCompileMode):
        """As in Triton 3.6."""

        def __exit__(self, *_: object) -> None:
            for future in self.raw_futures:
                future.result()

    plain = triton.AsyncCompileMode
    monkeypatch.setattr(triton, "AsyncCompileMode", Mode)

    def launch() -> None:
        mode = active_mode.get()
        mode.raw_futures.append(mode.executor.submit(lambda: 1 // 0))

    with pytest.raises(ZeroDivisionError):
        compile_ahead([launch])
    with plain(None):
        pass


class SlowDriver(HopperDriver):
    """Takes its time, on whatever thread asks first."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []

    def get_current_target(self) -> object:
        self.asked.append(threading.current_thread())
        time.sleep(0.05)
        return super().get_current_target()


def test_triton_is_prepared_on_threads_and_work_waits_for_them(monkeypatch) -> None:
    slow, hashed, intervals = SlowDriver(), [], [sys.getswitchinterval()]

    def triton_key() -> None:
        time.sleep(0.05)
        hashed.append(threading.current_thread())
        intervals.append(sys.getswitchinterval())

    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(driver, "_active", slow)
    monkeypatch.setattr(cache, "triton_key", triton_key)
    prepare()
    assert not hashed, "the caller waits"
    threads: list[threading.Thread] = []
    compile_ahead([lambda: threads.extend(slow.asked + hashed)])
    assert len(threads) == 2
    assert threading.current_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)
    assert intervals[1] < intervals[0] == sys.getswitchinterval()


@pytest.mark.parametrize("moved", [False, True])
def test_what_cannot_be_prepared_is_left_to_the_first_launch(monkeypatch, moved: bool) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(driver, "_active", None)
    monkeypatch.setattr(driver, "_default", None)
    monkeypatch.setattr(torch.cuda, "is_available", fail)
    if moved:
        monkeypatch.delattr(cache, "triton_key")
    else:
        monkeypatch.setattr(cache, "triton_key", fail)
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    prepare()
    called: list[bool] = []
    compile_ahead([lambda: called.append(True)])
    assert called and not failed


def test_the_interpreter_needs_no_preparation(monkeypatch) -> None:
    monkeypatch.setattr(module, "INTERPRETED", True)
    monkeypatch.setattr(threading, "Thread", None)
    prepare()


def test_a_gpu_prepares_triton_when_it_starts(monkeypatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(ops, "use_platform", calls.append)
    monkeypatch.setattr(module, "prepare", lambda: calls.append("prepare"))
    cuda.Platform().start()
    assert calls == ["triton", "prepare"]
