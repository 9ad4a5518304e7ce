"""Profiling a running server."""

import gzip
import json
from pathlib import Path

from harness import running


def test_a_profile_is_written_on_request_and_the_server_goes_on(
    model: Path, tmp_path: Path
) -> None:
    with running(model, "--enable-admin", "--profiler-dir", str(tmp_path)) as server:
        assert server.http.post("/stop_profile").status_code == 400
        started = server.http.post("/start_profile")
        assert started.status_code == 200, started.text
        assert server.complete(max_tokens=4, ignore_eos=True).status_code == 200
        stopped = server.http.post("/stop_profile")
        assert stopped.json() == started.json()
        with gzip.open(stopped.json()["trace"]) as trace:
            names = {event.get("name", "") for event in json.load(trace)["traceEvents"]}
        assert any(name.startswith("aten::") for name in names)
        assert any(name.startswith("ProfilerStep") for name in names)
        assert server.complete().status_code == 200
