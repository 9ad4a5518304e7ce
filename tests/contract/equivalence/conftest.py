from __future__ import annotations

import pytest

from tests.contract.equivalence.tiny_engine import (
    TinyEngine,
    Tokens,
    Truth,
    varied_requests,
    write_checkpoint,
)


@pytest.fixture(scope="session", params=["gemma3_text", "llama"])
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What each request answers when it runs alone, in one piece, without a prefix cache."""
    files = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    requests = varied_requests()
    engine = TinyEngine(files, prefix_caching=False)
    tokens: Tokens = {}
    for entry in requests:
        tokens |= engine.run([entry])
    assert all(len(set(t)) > 3 for t in tokens.values()), "a stuck model proves nothing"
    return Truth(files, requests, tokens)
