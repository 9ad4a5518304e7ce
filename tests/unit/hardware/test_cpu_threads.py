"""Kernels keep the threads of the platform's start."""

from __future__ import annotations

import pytest
import torch

from xllm.hardware.kernels.cpu import native, prepare


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_a_library_that_is_asked_for_while_torch_has_one_thread_keeps_its_own() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        prepare()
        torch.set_num_threads(1)
        library = native.library()
        assert library is not None
        assert library.xllm_num_threads() == 3
    finally:
        torch.set_num_threads(before)
        prepare()
        native.library()
