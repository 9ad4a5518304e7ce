"""One server for the tests that only talk to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Server, running, tiny_model


@pytest.fixture(scope="session")
def model() -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with running(model, "--allowed-origins", '["http://localhost:3000"]') as server:
        yield server
