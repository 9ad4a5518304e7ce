"""The metric catalogue: one line per metric, and the page that Prometheus reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from xllm.core.observability.instruments import Counter, Gauge, Histogram, Instrument, Metric

# Upper bounds in seconds: fine below the human threshold, coarse above.
_LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKENS = tuple(float(1 << k) for k in range(18))

TTFT = Metric("time_to_first_token", "seconds", "Arrival to first token.", buckets=_LATENCY)
ITL = Metric("inter_token_latency", "seconds", "Token to next token.", buckets=_LATENCY)
E2E = Metric("e2e_request_latency", "seconds", "Arrival to end of a request.", buckets=_LATENCY)
QUEUE = Metric("request_queue_time", "seconds", "Arrival to first scheduling.", buckets=_LATENCY)
REQUEST_PROMPT = Metric("request_prompt", "tokens", "Prompt of one request.", buckets=_TOKENS)
REQUEST_OUTPUT = Metric("request_generation", "tokens", "Answer of one request.", buckets=_TOKENS)
PROMPT_TOKENS = Metric("prompt", "tokens", "Prompt tokens of the requests that started.")
GENERATION_TOKENS = Metric("generation", "tokens", "Generated tokens.")
STARTED = Metric("requests_started", "", "Requests handed to the engine.")
FINISHED = Metric("requests_finished", "", "Requests that ended, counted once.", label="reason")
POOLED = Metric("requests_pooled", "", "Prompts answered with a vector: embeddings, scores.")
RUNNING = Metric("num_requests_running", "", "Sequences that run.")
WAITING = Metric("num_requests_waiting", "", "Sequences that wait.")
KV_USAGE = Metric("kv_cache_usage", "ratio", "Share of the KV blocks in use, 0 to 1.")
KV_CAPACITY = Metric("kv_cache_capacity", "tokens", "Tokens that the KV cache can hold.")
STEPS = Metric("engine_steps", "", "Steps of the engine.")
STEP_TIME = Metric("engine_step", "seconds", "Wall time inside steps.")
PREEMPTIONS = Metric("num_preemptions", "", "Sequences that lost their KV blocks to others.")
PREFIX_QUERIES = Metric("prefix_cache_queried", "tokens", "Tokens looked up in the prefix cache.")
PREFIX_HITS = Metric("prefix_cache_hit", "tokens", "Tokens found in the prefix cache.")
SERVER_MEMORY = Metric("server_resident_memory", "bytes", "Host memory of the server process.")
ENGINE_MEMORY = Metric("engine_resident_memory", "bytes", "Host memory of the engine process.")
STEP_RUNNERS = Metric("engine_steps_run", "", "Steps by how they were launched.", label="runner")
IDLE_P50 = Metric(
    "device_idle_p50", "seconds", "Device idle between decode steps, median of the latest."
)
IDLE_P99 = Metric(
    "device_idle_p99", "seconds", "Device idle between decode steps, 99th percentile."
)
ENGINE_UP = Metric("engine_up", "", "1 while the engine is ready and alive.")

# Values of the reason label, from the least to the most severe: of several choices the worst wins.
FINISH_REASONS = ("stop", "length", "abort", "error")
# Values of the runner label.
STEP_RUNNER_NAMES = ("decode_graph", "mixed_graph", "eager")


class ServerMetrics:
    """Every instrument of one server, by role."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT)
        self.itl = Histogram(ITL)
        self.e2e = Histogram(E2E)
        self.queue = Histogram(QUEUE)
        self.request_prompt = Histogram(REQUEST_PROMPT)
        self.request_generation = Histogram(REQUEST_OUTPUT)
        self.prompt_tokens = Counter(PROMPT_TOKENS)
        self.generation_tokens = Counter(GENERATION_TOKENS)
        self.requests_started = Counter(STARTED)
        self.requests_finished = Counter(FINISHED)
        self.requests_pooled = Counter(POOLED)
        self.running = Gauge(RUNNING)
        self.waiting = Gauge(WAITING)
        self.kv_usage = Gauge(KV_USAGE)
        self.kv_capacity = Gauge(KV_CAPACITY)
        self.steps = Counter(STEPS)
        self.step_seconds = Counter(STEP_TIME)
        self.preemptions = Counter(PREEMPTIONS)
        self.prefix_queries = Counter(PREFIX_QUERIES)
        self.prefix_hits = Counter(PREFIX_HITS)
        self.server_memory = Gauge(SERVER_MEMORY)
        self.engine_memory = Gauge(ENGINE_MEMORY)
        self.step_runners = Counter(STEP_RUNNERS)
        self.idle_p50 = Gauge(IDLE_P50)
        self.idle_p99 = Gauge(IDLE_P99)
        self.engine_up = Gauge(ENGINE_UP)
        for reason in FINISH_REASONS:
            self.requests_finished.add(0.0, reason)
        for runner in STEP_RUNNER_NAMES:
            self.step_runners.add(0.0, runner)

    def instruments(self) -> Iterator[Instrument]:
        """Every instrument."""
        for value in vars(self).values():
            if isinstance(value, Counter | Gauge | Histogram):
                yield value


# vLLM's name (its prefix is "vllm:", its label of endings "finished_reason") for what we count.
_VLLM = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "kv_cache_usage_perc": "kv_usage",
    "num_preemptions": "preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "request_success": "requests_finished",
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "e2e_request_latency_seconds": "e2e",
    "request_queue_time_seconds": "queue",
    "request_prompt_tokens": "request_prompt",
    "request_generation_tokens": "request_generation",
}


def aliases(metrics: ServerMetrics, compat: str | None) -> Iterator[tuple[Instrument, Metric]]:
    """Instruments that another engine has too, with the metric as that engine names it."""
    for name, role in (_VLLM if compat == "vllm" else {}).items():
        instrument: Instrument = getattr(metrics, role)
        label = instrument.metric.label and "finished_reason"
        yield (
            instrument,
            dataclasses.replace(instrument.metric, prefix="vllm:", name=name, unit="", label=label),
        )


def exposition(
    metrics: ServerMetrics, model: str, compat: str | None = None
) -> Callable[[], bytes]:
    """A function that writes the Prometheus text page, every sample labelled with the model.

    Args:
        compat: an engine under whose names (``aliases``) the values are exported a second time.
    """
    # Imported on the first scrape's behalf: start-up should not pay for it.
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterator[Any]:
            for instrument in metrics.instruments():
                yield _family(instrument, instrument.metric, model)
            for instrument, metric in aliases(metrics, compat):
                yield _family(instrument, metric, model)

    registry = CollectorRegistry()
    registry.register(Collector())
    return lambda: generate_latest(registry)


def _family(instrument: Instrument, metric: Metric, model: str) -> Any:
    from prometheus_client import core

    labels = ["model_name", *([metric.label] if metric.label else [])]
    if isinstance(instrument, Gauge):
        gauge = core.GaugeMetricFamily(metric.full_name, metric.help, labels=labels)
        gauge.add_metric([model], instrument.value)
        return gauge
    if isinstance(instrument, Counter):
        counter = core.CounterMetricFamily(metric.full_name, metric.help, labels=labels)
        for label, value in instrument.values.items():
            counter.add_metric([model, label] if metric.label else [model], value)
        return counter
    histogram = core.HistogramMetricFamily(metric.full_name, metric.help, labels=labels)
    bounds = [*(f"{b:g}" for b in metric.buckets), "+Inf"]
    totals = instrument.counts.cumsum().tolist()
    histogram.add_metric([model], list(zip(bounds, totals, strict=True)), instrument.sum)
    return histogram
