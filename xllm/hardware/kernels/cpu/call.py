"""How the op files call the library: one packed struct per call, fallbacks for other dtypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels.cpu import native

# The dtypes that the kernels are compiled for, with their code; others run the reference.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}

# Told of every call, by the address of its kernel and its packed struct, while a graph is captured.
_observer: Callable[[int, bytes], None] | None = None


def entry(name: str) -> Callable[[bytes], None]:
    """A kernel. The library is there: ``ready`` was asked before the op was bound."""
    library: ctypes.CDLL | None = native.library()
    assert library is not None
    kernel: Any = getattr(library, name)
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address is not None

    def call(packed: bytes) -> None:
        kernel(packed)
        if _observer is not None:
            _observer(address, packed)

    return call


def observe(observer: Callable[[int, bytes], None] | None) -> None:
    """Tell ``observer`` of every further call; None ends that."""
    global _observer
    _observer = observer


def pointer(tensor: Tensor | None) -> int:
    """Address of a tensor's data, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
