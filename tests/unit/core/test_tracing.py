"""Spans of ended requests, read back from OpenTelemetry's in-memory exporter."""

import sys
import time
from typing import Any

import pytest

from xllm.core.observability.tracing import Caller, RequestTimes, Tracer, open_tracer

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


def spans_of(*requests: RequestTimes) -> list[Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer("tiny", provider)
    for request in requests:
        tracer.record(request)
    tracer.close()
    return list(exporter.get_finished_spans())


def ended(caller: Caller | None = None, **fields: Any) -> RequestTimes:
    now = time.monotonic()
    times = {"scheduled": now - 0.9, "first_token": now - 0.6, "end": now} | fields
    asked = {"gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": None}
    return RequestTimes("r1", asked, caller, now - 1.0, prompt_tokens=7, output_tokens=5, **times)


def test_a_request_is_one_span_with_its_phases_inside_the_callers_trace() -> None:
    caller = Caller("/v1/chat/completions", HEADERS)
    *phases, span = spans_of(ended(caller, finish_reason="stop"))
    assert span.name == "chat tiny" and span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert [p.name for p in phases] == ["queue", "prefill", "decode"]
    assert {p.parent.span_id for p in phases} == {span.context.span_id}
    seconds = [(p.end_time - p.start_time) / 1e9 for p in phases]
    assert seconds == pytest.approx([0.1, 0.3, 0.6], abs=1e-3)
    assert phases[0].start_time == span.start_time and phases[-1].end_time == span.end_time
    assert abs(span.end_time / 1e9 - time.time()) < 5


def test_the_attributes_are_those_of_the_conventions() -> None:
    *_, span = spans_of(ended(Caller("/v1/completions", {}), finish_reason="length"))
    found = dict(span.attributes)
    assert found.pop("gen_ai.latency.e2e") == pytest.approx(1.0)
    assert found.pop("gen_ai.latency.time_in_queue") == pytest.approx(0.1)
    assert found.pop("gen_ai.latency.time_to_first_token") == pytest.approx(0.4)
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "xllm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.id": "r1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("length",),
        "url.path": "/v1/completions",
    }
    assert span.parent is None


def test_a_request_that_never_ran_has_only_waited_and_an_error_is_marked() -> None:
    queue, span = spans_of(ended(scheduled=0.0, first_token=0.0, finish_reason="error"))
    assert queue.name == "queue" and queue.end_time == span.end_time
    assert span.status.status_code.name == "ERROR"
    assert "gen_ai.latency.time_to_first_token" not in span.attributes


def test_without_opentelemetry_the_flag_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"pip install opentelemetry-sdk"):
        open_tracer("http://127.0.0.1:1/v1/traces", "tiny")
