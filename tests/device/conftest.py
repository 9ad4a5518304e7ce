"""Tests here need a GPU; without one they are skipped, and Triton's interpreter stays off."""

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.device)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no GPU"))
