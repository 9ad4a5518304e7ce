"""The catalogue and the page that Prometheus reads."""

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from xllm.core.observability.instruments import Histogram, Metric
from xllm.core.observability.metrics import FINISH_REASONS, ServerMetrics, exposition


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(page.decode())
        for s in family.samples
    }


def test_every_instrument_is_on_the_page_once_with_unit_and_help() -> None:
    metrics = ServerMetrics()
    page = exposition(metrics, "m")()
    families = {f.name: f for f in text_string_to_metric_families(page.decode())}
    instruments = list(metrics.instruments())
    assert len({i.metric.full_name for i in instruments}) == len(instruments) == len(families)
    for instrument in instruments:
        assert families[instrument.metric.full_name].documentation == instrument.metric.help


def test_a_histogram_counts_a_bound_into_its_own_bucket_and_keeps_the_sum() -> None:
    histogram = Histogram(Metric("h", "seconds", "h", buckets=(1.0, 2.0)))
    histogram.observe(np.array([0.5, 1.0, 1.5, 2.0, 9.0]))
    histogram.observe([])
    assert histogram.counts.tolist() == [2, 2, 1]
    assert histogram.sum == 14.0


def test_the_page_shows_cumulative_buckets_and_current_values() -> None:
    metrics = ServerMetrics()
    page = exposition(metrics, 'na"me\n')
    metrics.ttft.observe([0.1, 3.0, 10_000.0])
    metrics.generation_tokens.add(7)
    metrics.running.set(3)
    metrics.requests_finished.add(1, "abort")
    values = samples(page())
    model = ("model_name", 'na"me\n')
    assert values["xllm:generation_tokens_total", (model,)] == 7
    assert values["xllm:num_requests_running", (model,)] == 3
    name = "xllm:time_to_first_token_seconds"
    assert values[f"{name}_bucket", (("le", "0.1"), model)] == 1
    assert values[f"{name}_bucket", (("le", "5"), model)] == 2
    assert (
        values[f"{name}_bucket", (("le", "+Inf"), model)] == values[f"{name}_count", (model,)] == 3
    )
    reasons = {
        r: values["xllm:requests_finished_total", (model, ("reason", r))] for r in FINISH_REASONS
    }
    assert reasons == {"stop": 0, "length": 0, "abort": 1, "error": 0}


def test_a_total_taken_over_never_falls() -> None:
    metrics = ServerMetrics()
    metrics.preemptions.raise_to(5)
    metrics.preemptions.raise_to(3)
    assert metrics.preemptions.values == {"": 5}


def test_vllms_names_carry_the_same_values_when_asked_for() -> None:
    metrics = ServerMetrics()
    metrics.running.set(3)
    metrics.ttft.observe([0.1, 3.0])
    metrics.requests_finished.add(2, "length")
    page = exposition(metrics, "m", "vllm")()
    values, model = samples(page), ("model_name", "m")
    assert values["vllm:num_requests_running", (model,)] == 3
    assert values["vllm:time_to_first_token_seconds_count", (model,)] == 2
    assert values["vllm:request_success_total", (("finished_reason", "length"), model)] == 2
    assert values["vllm:generation_tokens_total", (model,)] == 0
    families = [f.name for f in text_string_to_metric_families(page.decode())]
    assert len(set(families)) == len(families)
    assert b"vllm:" not in exposition(metrics, "m")()
