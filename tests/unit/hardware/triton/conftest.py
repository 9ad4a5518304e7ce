"""Where the kernels under test run."""

import importlib.util

import pytest
import torch

# CUDA builds of torch bring Triton; for others the dev extra does.
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device() -> torch.device:
    """Where the kernels under test run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
