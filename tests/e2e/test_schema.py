"""schemathesis drives the server from its own OpenAPI document."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import KEY, Server

pytest.importorskip("schemathesis")


@pytest.mark.slow
def test_what_the_document_allows_never_breaks_the_server(server: Server, tmp_path: Path) -> None:
    document = server.http.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(tmp_path / "openapi.json")),
        *("--url", str(server.http.base_url), "--header", f"Authorization: Bearer {KEY}"),
        *("--checks", "not_a_server_error,response_schema_conformance,ignored_auth"),
        *("--max-examples", os.environ.get("SCHEMA_EXAMPLES", "40"), "--seed", "1"),
        *("--mode", "all", "--request-timeout", "60", "--no-color", "--phases", "coverage,fuzzing"),
    ]
    engine = server.engine_pid()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.engine_pid() == engine
    assert server.complete().status_code == 200
