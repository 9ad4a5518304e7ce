"""Graphs of the CPU: what a function computed, as a list that is run again without Python.

A capture runs the function once and writes down its calls of the library (kernel and packed
struct) and of torch. Consecutive calls of the library become one call, which is what a replay
gains: a step of a small model spends as long in Python as in its kernels. Operators of torch are
called again, and their results copied to where they lay.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xllm.hardware.graphs import CaptureError
from xllm.hardware.kernels.cpu import call, native

_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.empty_like.default,
    }
)
_NOT_REPEATABLE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_HOST_READS = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__})
_ALIGNMENT = 64
_pack_call = struct.Struct("=2q").pack  # kernel, struct


class CpuGraph:
    """One captured function. ``output`` is what it returned; replays overwrite its tensors."""

    def __init__(self, steps: list[Callable[[], Any]], output: Any, memory: _Memory) -> None:
        self._steps = steps
        self._memory = memory  # steps hold addresses of intermediate tensors, not the tensors
        self.output = output

    @torch.inference_mode()
    def replay(self) -> None:
        """Compute it again from what its inputs hold now."""
        for step in self._steps:
            step()


class CpuGraphs:
    """Captures functions into graphs that share the memory of their intermediate tensors.

    Sharing is sound because graphs run one after the other, and what a graph returns is read before
    the next one runs or is captured.
    """

    # A capture costs one run and computes it, so graphs are made when they are first needed.
    on_demand = True

    def __init__(self) -> None:
        self._memory = _Memory()

    def capture(self, work: Callable[[], Any]) -> CpuGraph:
        """Run ``work`` and record it.

        Raises:
            CaptureError: it reads tensors on the host, or has results of no fixed shape, or there
                are no kernels to record.
        """
        if native.library() is None:
            raise CaptureError("the CPU kernels could not be compiled")
        recorder = _Recorder(self._memory)
        with torch.inference_mode(), recorder.recording():
            output = work()
        return CpuGraph(recorder.steps(), output, self._memory)


class _Memory:
    """Blocks that captures lend to tensors.

    A block is free again when the last tensor in it is gone. As a replay repeats the order of its
    capture, what was free then is free now. Each capture starts with every block free: outputs of
    earlier graphs may be overwritten.
    """

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []  # of powers of two in bytes, ascending
        self._lent: dict[int, int] = {}  # id of a block: its references when it was lent

    def begin(self) -> None:
        self._lent.clear()

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        num_bytes = max(count * dtype.itemsize, _ALIGNMENT)
        block = next((b for b in self._blocks if b.nbytes >= num_bytes and self._is_free(b)), None)
        if block is None:
            block = _aligned(1 << (num_bytes - 1).bit_length())
            self._blocks.append(block)
            self._blocks.sort(key=lambda b: b.nbytes)
        self._lent[id(block)] = sys.getrefcount(block)
        # The tensor's storage holds a reference to the array.
        return torch.frombuffer(block, dtype=dtype, count=count).view(shape)

    def _is_free(self, block: np.ndarray) -> bool:
        # Counted from here there is one more reference than in `empty`: the parameter.
        lent = self._lent.get(id(block))
        return lent is None or sys.getrefcount(block) <= lent + 1


def _aligned(num_bytes: int) -> np.ndarray:
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes]


class _Recorder(TorchDispatchMode):
    """Writes down what runs, in order: calls of the library as data, others as functions."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__()
        self._memory = memory
        self._steps: list[Callable[[], Any]] = []
        self._calls: list[tuple[int, bytes]] = []  # of the library, since the last step

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._memory.begin()
        call.observe(lambda kernel, packed: self._calls.append((kernel, packed)))
        try:
            with _NoHostReads(), self:
                yield
        finally:
            call.observe(None)

    def steps(self) -> list[Callable[[], Any]]:
        """What a replay does, in order."""
        self._add()
        return self._steps

    def _add(self, *steps: Callable[[], Any]) -> None:
        if self._calls:
            self._steps.append(_sequence(self._calls))
            self._calls = []
        self._steps += steps

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ALLOCATIONS:
            like = func(*args, **{**kwargs, "device": "meta"})
            return self._memory.empty(like.shape, like.dtype)
        if _NOT_REPEATABLE.intersection(func.tags):
            raise CaptureError(f"{func} reads a tensor on the host")
        output = func(*args, **kwargs)
        again = functools.partial(func, *args, **kwargs)
        if func._schema.is_mutable:
            self._add(again)
        elif not _shares_memory(output, (args, kwargs)):
            self._add(functools.partial(_repeat, again, output))
        return output


class _NoHostReads(TorchFunctionMode):
    """Refuses what reads a tensor without an operator, and so would be fixed by the capture."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _HOST_READS:
            raise CaptureError(f"{func.__name__} reads a tensor on the host")
        return func(*args, **(kwargs or {}))


def _sequence(calls: list[tuple[int, bytes]]) -> Callable[[], Any]:
    """Calls of the library, made by one."""
    library = native.library()
    assert library is not None
    structs = ctypes.create_string_buffer(b"".join(packed for _, packed in calls))
    ends = itertools.accumulate(len(packed) for _, packed in calls)
    start = ctypes.addressof(structs)
    table = ctypes.create_string_buffer(
        b"".join(
            _pack_call(kernel, start + end - len(packed))
            for (kernel, packed), end in zip(calls, ends, strict=True)
        )
    )
    return functools.partial(_run_sequence, library.xllm_run, table, len(calls), structs)


def _run_sequence(run: Any, table: Any, count: int, structs: Any) -> None:
    run(table, count)  # `structs` is what the table points into


def _repeat(again: Callable[[], Any], output: Any) -> None:
    for old, new in zip(tree_leaves(output), tree_leaves(again()), strict=True):
        if isinstance(old, Tensor):
            old.copy_(new)


def _shares_memory(output: Any, arguments: Any) -> bool:
    storages = {_storage(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
    return any(
        _storage(leaf) in storages for leaf in tree_leaves(output) if isinstance(leaf, Tensor)
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
