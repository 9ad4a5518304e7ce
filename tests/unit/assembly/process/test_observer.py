"""Each request is counted exactly once, whatever the order of its ends."""

import random
import time

import numpy as np
import pytest

from xllm.assembly.process.observer import RequestObserver
from xllm.core.messages.server import Failure, OutputBatch, Started
from xllm.core.observability.metrics import ServerMetrics
from xllm.core.observability.tracing import CALLER, Caller, RequestTimes
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams


def request(handle: int, n: int = 1, prompt_len: int = 3, part_of: int = 0) -> Request:
    return Request(
        handle=handle,
        request_id=f"r{handle}",
        prompt_token_ids=np.zeros(prompt_len, np.int32),
        params=SamplingParams(n=n),
        max_tokens=16,
        arrival_time=time.monotonic(),
        part_of=part_of,
    )


def batch(*entries: tuple[int, int, int, FinishReason], **extra: object) -> OutputBatch:
    """Entries are (handle, choice, number of tokens, finish)."""
    handles, choices, counts, finish = zip(*entries, strict=True) if entries else ((),) * 4
    return OutputBatch(
        handles=np.array(handles, np.int64),
        choices=np.array(choices, np.int32),
        counts=np.array(counts, np.int32),
        token_ids=np.zeros(sum(counts), np.int32),
        finish=np.array(finish, np.int8),
        stop_tokens=np.full(len(handles), -1, np.int32),
        **extra,  # type: ignore[arg-type]
    )


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics()


@pytest.fixture
def observer(metrics: ServerMetrics) -> RequestObserver:
    return RequestObserver(metrics)


NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH


def test_tokens_latencies_and_the_outcome_of_a_plain_request(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1)])
    assert (observer.num_open, observer.num_sequences) == (1, 1)
    observer.delivered(batch(started=[Started(1, 0, 0, 0.25)]))
    observer.check()
    observer.delivered(batch((1, 0, 1, NONE)))
    observer.delivered(batch((1, 0, 3, NONE)))
    observer.delivered(batch((1, 0, 1, STOP)))
    observer.check()
    assert observer.num_open == 0
    assert metrics.generation_tokens.values[""] == 5
    assert metrics.prompt_tokens.values[""] == 3
    assert metrics.ttft.counts.sum() == 1
    assert metrics.itl.counts.sum() == 4  # every token but the first
    assert metrics.e2e.counts.sum() == 1
    assert metrics.queue.sum == 0.25
    assert metrics.request_generation.sum == 5
    assert metrics.requests_finished.values == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_five_aborts_count_five_though_the_engine_reports_them_again(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(h, n=2) for h in range(5)])
    for handle in range(5):
        observer.ended(handle, -1, "abort")
    abort = FinishReason.ABORT
    observer.delivered(batch(*[(h, c, 0, abort) for h in range(5) for c in range(2)]))
    observer.check()
    assert metrics.requests_finished.values["abort"] == 5
    assert (
        sum(metrics.requests_finished.values.values()) == metrics.requests_started.values[""] == 5
    )
    assert metrics.e2e.counts.sum() == 5


def test_a_request_of_several_choices_ends_once_with_its_worst_reason(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1, n=3)])
    observer.delivered(batch((1, 0, 2, STOP), (1, 2, 2, LENGTH)))
    assert observer.num_open == 1
    observer.delivered(batch((1, 1, 1, STOP)))
    assert metrics.requests_finished.values == {"stop": 0, "length": 1, "abort": 0, "error": 0}
    assert metrics.request_generation.sum == 5
    observer.check()


def test_a_prompt_is_counted_once_though_one_choice_ends_before_the_other_starts(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1, n=2)])
    for choice in range(2):
        observer.delivered(batch(started=[Started(1, choice, 0, 0.25)]))
        observer.delivered(batch((1, choice, 1, LENGTH)))
    observer.check()
    assert metrics.prompt_tokens.values[""] == metrics.request_prompt.sum == 3
    assert metrics.queue.counts.sum() == 1


def test_a_request_answered_in_parts_is_counted_as_one(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1, n=2)])
    handles = iter(range(2, 100))
    for step in range(3):
        parts = [next(handles) for _ in range(step + 1)]
        observer.submitted([request(h, prompt_len=3 + step, part_of=1) for h in parts])
        observer.delivered(batch(started=[Started(h, 0, 0, 0.25) for h in parts]))
        observer.check()
        assert observer.num_open == 1
        observer.delivered(batch(*[(h, 0, 1, LENGTH) for h in parts]))
    assert sum(metrics.requests_finished.values.values()) == 0
    observer.ended(1, -1, "stop")
    observer.check()
    assert (observer.num_open, observer.num_sequences) == (0, 0)
    assert metrics.requests_started.values[""] == 1
    assert metrics.requests_finished.values == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    assert metrics.prompt_tokens.values[""] == metrics.request_prompt.sum == 3
    assert metrics.generation_tokens.values[""] == metrics.request_generation.sum == 6
    for histogram in (metrics.queue, metrics.ttft, metrics.e2e, metrics.request_generation):
        assert histogram.counts.sum() == 1


@pytest.mark.parametrize("dead", [True, False])
def test_a_request_one_part_of_which_failed_is_an_error(
    dead: bool, metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1)])
    observer.submitted([request(2, part_of=1), request(3, part_of=1)])
    if dead:
        observer.fail_all()
    else:
        observer.delivered(batch(failures=[Failure(2, -1, "it failed", 500)]))
        observer.ended(3, -1, "abort")
    observer.ended(1, -1, "abort")
    observer.check()
    assert observer.num_open == 0
    assert metrics.requests_finished.values == {"stop": 0, "length": 0, "abort": 0, "error": 1}


def test_refusals_and_a_dead_engine_count_as_errors(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    observer.submitted([request(1, n=2), request(2), request(3)])
    observer.delivered(batch(failures=[Failure(1, -1, "does not fit", 400)]))
    observer.fail_all()
    observer.fail_all()
    observer.check()
    assert (observer.num_open, observer.num_sequences) == (0, 0)
    assert metrics.requests_finished.values["error"] == 3


def test_outputs_of_unknown_sequences_are_ignored(observer: RequestObserver) -> None:
    observer.delivered(batch((9, 0, 1, STOP), started=[Started(9, 0, 0, 1.0)]))
    observer.ended(9, 0, "stop")
    observer.check()


def test_ledgers_agree_after_random_traffic(
    metrics: ServerMetrics, observer: RequestObserver
) -> None:
    rng = random.Random(0)
    live: list[tuple[int, int]] = []
    for handle in range(300):
        n = rng.randint(1, 4)
        observer.submitted([request(handle, n)])
        live += [(handle, c) for c in range(n)]
        chosen = rng.sample(live, rng.randint(0, len(live)))
        observer.delivered(batch(started=[Started(h, c, 0, 0.0) for h, c in chosen]))
        ends = [(h, c, rng.randint(0, 3), rng.choice([NONE, NONE, STOP])) for h, c in chosen]
        observer.delivered(batch(*ends))
        if rng.random() < 0.2:
            observer.ended(rng.randrange(handle + 1), -1, "abort")
        observer.check()
    observer.fail_all()
    observer.check()
    assert sum(metrics.requests_finished.values.values()) == 300


def test_the_line_of_a_request_names_it_and_holds_no_text(
    metrics: ServerMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "xllm")
    observer = RequestObserver(metrics, log_requests=True)
    observer.submitted([request(1)])
    observer.ended(1, -1, "abort")
    (record,) = caplog.records
    fields = record.fields  # type: ignore[attr-defined]
    assert fields["request_id"] in record.getMessage()
    assert fields["finish_reason"] == "abort"
    assert set(fields) == {
        *("request_id", "prompt_tokens", "generation_tokens", "finish_reason", "seconds"),
    }


def test_the_times_of_a_request_are_told_once_it_has_ended(metrics: ServerMetrics) -> None:
    told: list[RequestTimes] = []
    observer = RequestObserver(metrics, on_end=told.append)
    token = CALLER.set(Caller("/v1/completions", {}))
    observer.submitted([request(1, n=2)])
    CALLER.reset(token)
    started = [Started(1, 0, 0, 0.25), Started(1, 1, 0, 9.0)]
    observer.delivered(batch((1, 0, 2, NONE), (1, 1, 1, STOP), started=started))
    assert told == []
    observer.delivered(batch((1, 0, 1, LENGTH)))
    (times,) = told
    assert times.caller == Caller("/v1/completions", {})
    assert times.scheduled == pytest.approx(times.arrival + 0.25)
    assert times.arrival <= times.first_token <= times.end
    assert (times.prompt_tokens, times.output_tokens, times.finish_reason) == (3, 4, "length")
    assert times.attributes["gen_ai.request.choice.count"] == 2
