"""Compiles Triton kernels for a Hopper GPU where there is none.

The interpreter runs what the compiler refuses: a variable whose shape changes in a loop, operands
that no instruction takes. Run this module in a process of its own, without the interpreter.
"""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from xllm.hardware.kernels.triton import launch

CAPABILITY, WARP = 90, 32


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


if __name__ == "__main__":  # a file whose ``launch_all`` launches what to compile
    assert not triton.knobs.runtime.interpret
    with compile_only() as kernels:
        runpy.run_path(sys.argv[1])["launch_all"]()
    # What a compiler does where 8-bit values would have to be turned around in shared memory.
    bytewise = sum(len(re.findall(r"ld\.shared\.[bsu]8", k.asm["ptx"])) for k in kernels)
    print(len(kernels), "launches compiled,", bytewise, "loads of single bytes")
