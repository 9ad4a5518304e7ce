"""A real server watched: a profile of its engine, and traces that a small collector receives."""

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, running

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="the extra otel is not installed",
)
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(http.server.BaseHTTPRequestHandler):
    bodies: list[bytes] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}/v1/traces"
        listener.shutdown()


@pytest.fixture(scope="module")
def watched(
    model: Path, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = str(tmp_path_factory.mktemp("profiles"))
    flags = ("--enable-admin", "--profiler-dir", folder, "--otlp-traces-endpoint", endpoint)
    with running(model, *flags) as server:
        yield server


def received() -> list[Any]:
    spans = []
    for body in Collector.bodies:
        request = service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    return spans


def test_a_profile_is_written_on_request_and_the_server_goes_on(watched: Server) -> None:
    assert watched.http.post("/stop_profile").status_code == 400
    started = watched.http.post("/start_profile")
    assert started.status_code == 200, started.text
    assert watched.complete(max_tokens=4, ignore_eos=True).status_code == 200
    stopped = watched.http.post("/stop_profile")
    assert stopped.json() == started.json()
    with gzip.open(stopped.json()["trace"]) as trace:
        names = {event.get("name", "") for event in json.load(trace)["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)
    assert any(name.startswith("ProfilerStep") for name in names)
    assert watched.complete().status_code == 200


def test_a_request_becomes_a_span_of_its_callers_trace(watched: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    answer = watched.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    watched.process.terminate()  # what has not been sent yet leaves with a drain
    assert watched.process.wait(20) == 0
    spans = {span.name: span for span in received() if span.trace_id.hex() == TRACE}
    assert set(spans) == {"chat tiny", "queue", "prefill", "decode"}
    request = spans["chat tiny"]
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    assert all(s.parent_span_id == request.span_id for s in spans.values() if s is not request)
    found = {a.key: a.value for a in request.attributes}
    usage = answer.json()["usage"]
    assert found["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"]
    assert found["gen_ai.request.max_tokens"].int_value == 4
