from __future__ import annotations

import pytest

from tests.contract.equivalence.tiny_engine import Truth, solo_truth


@pytest.fixture(scope="session", params=["gemma3_text", "llama"])
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return solo_truth(request.param, tmp_path_factory.mktemp(request.param))
