"""Compiles the kernels of given work all at once, before it runs for the first time."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import triton
from triton.compiler import make_backend
from triton.runtime import cache, driver
from triton.runtime.jit import JITFunction

from xllm.hardware.kernels.triton.launch import INTERPRETED

# Two thirds of a compilation run outside Python's lock: in MLIR, LLVM, the assembler and the C
# compiler that builds a kernel's launcher. The rest, most of it tracing the kernel's code and
# linking libdevice, is one thread's at a time, so that more threads gain nothing.
_MAX_THREADS = 16
# Triton's files are hashed by the megabyte, each of which waits for Python's lock twice: at 5 ms,
# Python's default, it would take seconds beside a busy thread.
_SWITCH_SECONDS = 5e-4

_preparing: list[threading.Thread] = []
_alone = threading.Lock()  # what replaces a launch is all threads'


def prepare() -> None:
    """Begin, on threads, what Triton does once in a process before it compiles its first kernel.

    ``compile_ahead`` waits for them. What fails here is done again, and reported, by that kernel.
    """
    if INTERPRETED or _preparing:
        return
    for work in (_open_driver, _hash_compiler):
        thread = threading.Thread(target=work, name=f"triton{work.__name__}", daemon=True)
        thread.start()
        _preparing.append(thread)


def _open_driver() -> None:
    """Load Triton's access to the device, built by the C compiler at first, and ask for the
    assembler's version."""
    with contextlib.suppress(Exception):
        make_backend(driver.active.get_current_target()).hash()


def _hash_compiler() -> None:
    """Compute the hash of Triton's own files, some hundred megabytes, that is in every key of its
    cache. Triton keeps it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
    with contextlib.suppress(Exception):
        cache.triton_key()
    sys.setswitchinterval(interval)


def compile_ahead(
    works: Sequence[Callable[[], object]], enter_thread: Callable[[], object] = lambda: None
) -> None:
    """Call each of ``works`` with kernels that are compiled and loaded, and not launched.

    What else the work does is done, on whatever is in memory; so it must not depend on results.
    Compiled kernels stay in Triton's cache folder: a second start only loads them. Other threads
    launch as ever; one that calls this too waits for its turn.

    Args:
        enter_thread: called first in every thread that compiles and loads kernels; makes the device
            current.
    """
    with _alone:
        _compile_ahead(works, enter_thread)


def _compile_ahead(
    works: Sequence[Callable[[], object]], enter_thread: Callable[[], object]
) -> None:
    run, caller = JITFunction.run, threading.get_ident()
    known: dict[int, Any] = {}

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if threading.get_ident() != caller:  # another engine's steps
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if isinstance(kernel, triton.FutureKernel):
            if kernel.kernel is None and kernel.future.done():
                kernel.result()  # now its next launch finds it, instead of building its key again
        elif id(kernel) not in known:
            known[id(kernel)] = kernel  # compiled before, perhaps not loaded
            pool.submit(lambda: kernel)
        return kernel

    while _preparing:
        _preparing.pop().join()
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))

    def work_all() -> None:
        with triton.AsyncCompileMode(pool):
            for work in works:
                work()

    JITFunction.run = compile_only
    try:
        with _Pool(threads, initializer=enter_thread) as pool:
            # The mode is a context's: Triton 3.6 does not leave it if a compilation fails.
            contextvars.copy_context().run(work_all)
    finally:
        JITFunction.run = run


class _Pool(ThreadPoolExecutor):
    """Its tasks return kernels, which are loaded on the same thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def compile_and_load() -> Any:
            kernel = fn(*args, **kwargs)
            _load(kernel)
            return kernel

        return super().submit(compile_and_load)


def _load(kernel: Any) -> None:
    """Build the kernel's launcher and load it, which its first launch would do.

    That launch also reports what fails here.
    """
    try:
        _ = kernel.run
    except Exception:
        # Triton would take the launcher, which it built first, for a sign that the rest is there.
        if kernel.function is None:
            kernel._run = None
