"""How the op files call the library: one packed struct per call, fallbacks for other dtypes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels.cpu import native

# The dtypes that the kernels are compiled for, with their code; others run the reference.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def entry(name: str) -> Any:
    """An entry point. The library is there: ``ready`` was asked before the op was bound."""
    library: ctypes.CDLL | None = native.library()
    assert library is not None
    return getattr(library, name)


def pointer(tensor: Tensor | None) -> int:
    """Address of a tensor's data, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
