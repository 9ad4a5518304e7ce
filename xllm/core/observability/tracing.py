"""OpenTelemetry traces: one span per request, its phases as children. An extra: ``xllm[otel]``.

Spans are made when a request has ended, from the times that were noted anyway, and leave on a
thread of the exporter's own. Attribute names follow OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/); no span holds any text.
"""

from __future__ import annotations

import dataclasses
import time
from contextvars import ContextVar
from typing import Any

from xllm.version import __version__

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The HTTP request on whose behalf something happens."""

    path: str
    headers: dict[str, str]  # of W3C trace context: traceparent, tracestate


# Set by the server for the tasks of one HTTP request; None where traces are off.
CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


@dataclasses.dataclass(slots=True)
class RequestTimes:
    """A request from its arrival to its end. Times are ``time.monotonic()``; 0 means never."""

    request_id: str
    attributes: dict[str, Any]  # what was asked for, by the conventions' names; None is left out
    caller: Caller | None
    arrival: float
    scheduled: float = 0.0
    first_token: float = 0.0
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""


class Tracer:
    """Makes spans of ended requests.

    Args:
        model: the served model's name.
        provider: an OpenTelemetry ``TracerProvider``.
    """

    def __init__(self, model: str, provider: Any) -> None:
        self._model = model
        self._provider = provider
        self._tracer = provider.get_tracer("xllm", __version__)

    def record(self, request: RequestTimes) -> None:
        """Make the spans of one ended request."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        offset = time.time() - time.monotonic()

        def nanoseconds(moment: float) -> int:
            return int((moment + offset) * 1e9)

        path = request.caller.path if request.caller else ""
        operation = _OPERATIONS.get(path, "generate_content")
        parent = TraceContextTextMapPropagator().extract(
            request.caller.headers if request.caller else {}
        )
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            parent,
            SpanKind.SERVER,
            attributes=self._attributes(request, operation, path),
            start_time=nanoseconds(request.arrival),
        )
        if request.finish_reason == "error":
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for name, begin, end in _phases(request):
            phase = self._tracer.start_span(name, inside, start_time=nanoseconds(begin))
            phase.end(nanoseconds(end))
        span.end(nanoseconds(request.end))

    def close(self) -> None:
        """Send what is left. Blocks."""
        self._provider.shutdown()

    def _attributes(self, request: RequestTimes, operation: str, path: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "xllm",
            "gen_ai.request.model": self._model,
            "gen_ai.request.id": request.request_id,
            **request.attributes,
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": request.output_tokens,
            "gen_ai.response.finish_reasons": (request.finish_reason,),
            "gen_ai.latency.e2e": request.end - request.arrival,
            "url.path": path or None,
        }
        if request.scheduled:
            found["gen_ai.latency.time_in_queue"] = request.scheduled - request.arrival
        if request.first_token:
            found["gen_ai.latency.time_to_first_token"] = request.first_token - request.arrival
        return {name: value for name, value in found.items() if value is not None}


def open_tracer(endpoint: str, model: str) -> Tracer:
    """A tracer that sends to an OTLP/HTTP collector.

    Args:
        endpoint: its URL, e.g. ``http://localhost:4318/v1/traces``.

    Raises:
        ValueError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ValueError(
            "--otlp-traces-endpoint needs OpenTelemetry: "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "xllm"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracer(model, provider)


def _phases(request: RequestTimes) -> list[tuple[str, float, float]]:
    """Name, begin and end of each phase that the request went through."""
    marks = [
        ("queue", request.arrival),
        ("prefill", request.scheduled),
        ("decode", request.first_token),
    ]
    begun = [(name, moment) for name, moment in marks if moment]
    ends = [moment for _, moment in begun[1:]] + [request.end]
    return [(name, begin, end) for (name, begin), end in zip(begun, ends, strict=True)]
