"""Compiles Triton kernels for a Hopper GPU where there is none.

The interpreter runs what the compiler refuses: a variable whose shape changes in a loop, operands
that no instruction takes. ``compiled_launches`` runs this module in a process without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from xllm.hardware.kernels.triton import launch

CAPABILITY, WARP = 90, 32


def compiled_launches(file: str) -> tuple[int, int]:
    """Compile what ``launch_all`` of a file launches.

    Returns:
        The launches, and the single bytes that their kernels load from shared memory, which is what
        the compiler makes of 8-bit values that have to be turned around there.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.hopper", file],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    launches, single_bytes = done.stdout.split()
    return int(launches), int(single_bytes)


class HopperDriver:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def compile_only() -> Iterator[list[Any]]:
    """Every launch in the block compiles its kernel, with dependent launches, and does not run it.

    Gives the list of what was compiled. Tensors may lie on the CPU. The process keeps the driver.
    """
    run, compiled = JITFunction.run, []

    def compile_kernel(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        compiled.append(kernel)
        return kernel

    driver.set_active(HopperDriver())
    with (
        mock.patch.object(JITFunction, "run", compile_kernel),
        mock.patch.object(launch, "supports_pdl", lambda device: True),
    ):
        yield compiled


if __name__ == "__main__":
    assert not triton.knobs.runtime.interpret
    threads = len(os.sched_getaffinity(0))
    with (
        compile_only() as launched,
        ThreadPoolExecutor(threads) as pool,
        triton.AsyncCompileMode(pool),
    ):
        runpy.run_path(sys.argv[1])["launch_all"]()
    kernels = [k.result() if isinstance(k, triton.FutureKernel) else k for k in launched]
    print(len(kernels), sum(len(re.findall(r"ld\.shared\.[bsu]8", k.asm["ptx"])) for k in kernels))
