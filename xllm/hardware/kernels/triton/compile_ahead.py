"""Compiles the kernels of given work all at once, before it runs for the first time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton
from triton.runtime.jit import JITFunction

# A compilation spends its time outside Python's lock: in MLIR, LLVM, the assembler and the C
# compiler that builds a kernel's launcher.
_MAX_THREADS = 16


def compile_ahead(
    works: Sequence[Callable[[], object]], enter_thread: Callable[[], object] = lambda: None
) -> None:
    """Call each of ``works`` with kernels that are compiled and loaded, and not launched.

    What else the work does is done, on whatever is in memory; so it must not depend on results.
    Compiled kernels stay in Triton's cache folder: a second start only loads them.

    Args:
        enter_thread: called first in every thread that loads kernels; makes the device current.
    """
    run = JITFunction.run
    found: dict[int, Any] = {}

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        found[id(kernel)] = kernel
        return kernel

    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    JITFunction.run = compile_only
    try:
        with ThreadPoolExecutor(threads) as pool, triton.AsyncCompileMode(pool):
            for work in works:
                work()
    finally:
        JITFunction.run = run
    with ThreadPoolExecutor(threads, initializer=enter_thread) as pool:
        list(pool.map(_load, found.values()))


def _load(kernel: Any) -> None:
    """Build the kernel's launcher and load it, which its first launch would do.

    That launch also reports what fails here.
    """
    if isinstance(kernel, triton.FutureKernel):
        kernel = kernel.result()
    with contextlib.suppress(Exception):
        _ = kernel.run
