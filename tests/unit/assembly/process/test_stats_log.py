"""What a busy server says of its steps."""

import pytest

from xllm.assembly.process import stats_log
from xllm.core.messages.server import EngineStats
from xllm.core.messages.worker import WorkerStats


@pytest.fixture
def lines(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(stats_log.logger, "info", lambda text, *args: found.append(text % args))
    return found


def take(worker: WorkerStats) -> None:
    log = stats_log.StatsLog(interval_seconds=1e-9)
    log.take(EngineStats(num_steps=10, worker=worker))


def test_a_device_that_computes_beside_the_host_has_a_line_of_its_idle_time(lines):
    take(WorkerStats(decode_graph_steps=9, eager_steps=1, idle_p50_us=7.0, idle_p99_us=12.0))
    throughput, idle = lines
    assert throughput.startswith("prompt 0 tok/s")
    assert idle == "steps as graphs 90.0 %, device idle between decodes p50 7 us, p99 12 us"


def test_a_processor_is_never_called_idle(lines):
    take(WorkerStats(decode_graph_steps=10))
    (throughput,) = lines
    assert throughput.startswith("prompt 0 tok/s")
