"""Every test of this folder runs on the ops of each platform that this machine has."""

from __future__ import annotations

import pytest

from xllm.hardware.kernels import ops


@pytest.fixture(scope="session", params=["reference", "cpu"], autouse=True)
def platform(request):
    """The kernels that layers call: the plain ones, then the CPU's own."""
    ops.use_platform(request.param)
    yield request.param
    ops.use_platform("reference")
