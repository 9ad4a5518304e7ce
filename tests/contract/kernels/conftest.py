"""Every implementation of the CPU's ops, as one table.

The AMX and AVX512-BF16 code runs here too where the processor lacks them: compiled with
``XLLM_EMULATE``, the few instructions it needs are plain functions.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.contract.kernels.harness import Implementation
from xllm.hardware.kernels import binding, ops
from xllm.hardware.kernels.cpu import native
from xllm.hardware.processor import processor

_ENGINES = {"float32": 0, "dot": 1, "tile": 2}


def own_engines() -> list[str]:
    """The engines that this processor has the instructions for."""
    needs = {"float32": set(), "dot": {"avx512_bf16"}, "tile": {"avx512_bf16", "amx_bf16"}}
    return [name for name, features in needs.items() if features <= processor().features]


def _bind(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the ops on ``library``: the CPU's op files take their entry points on import."""
    monkeypatch.setattr(native, "library", lambda: library)
    for file in sorted(set(binding.OP_FILES.values())):
        name = f"xllm.hardware.kernels.cpu.{file}"
        if importlib.util.find_spec(name) is not None:
            importlib.reload(importlib.import_module(name))
    ops.use_platform("cpu")


@pytest.fixture(
    scope="module",
    params=[f"own {name}" for name in own_engines()] + ["emulated dot", "emulated tile"],
)
def implementation(request: pytest.FixtureRequest) -> Iterator[Implementation]:
    """The CPU's ops on one engine. ``own`` is what this processor has."""
    if native.compiler() is None:
        pytest.skip("no C++ compiler: apt install g++")
    variant, engine = request.param.split()
    torch.set_num_threads(2)
    library = native.library() if variant == "own" else native.load(native.build("XLLM_EMULATE"))
    assert library is not None
    library.xllm_set_num_threads(2)
    library.xllm_limit_engine(_ENGINES[engine])
    assert library.xllm_engine() == _ENGINES[engine]
    with pytest.MonkeyPatch.context() as monkeypatch:
        _bind(library, monkeypatch)
        yield Implementation(request.param, vars(ops))
        library.xllm_limit_engine(max(_ENGINES.values()))
    own = native.library()
    if own is not None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            _bind(own, monkeypatch)
    ops.use_platform("reference")
