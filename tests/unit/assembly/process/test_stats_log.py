"""What a busy server says of its steps."""

import logging

from xllm.assembly.process.stats_log import StatsLog
from xllm.core.messages.server import EngineStats
from xllm.core.messages.worker import WorkerStats


def lines(caplog, worker: WorkerStats) -> list[str]:
    log = StatsLog(interval_seconds=1e-9)
    with caplog.at_level(logging.INFO):
        log.take(EngineStats(num_steps=10, worker=worker))
    return [record.getMessage() for record in caplog.records]


def test_a_device_that_computes_beside_the_host_has_a_line_of_its_idle_time(caplog):
    worker = WorkerStats(decode_graph_steps=9, eager_steps=1, idle_p50_us=7.0, idle_p99_us=12.0)
    throughput, idle = lines(caplog, worker)
    assert throughput.startswith("prompt 0 tok/s")
    assert idle == "steps as graphs 90.0 %, device idle between decodes p50 7 us, p99 12 us"


def test_a_processor_is_never_called_idle(caplog):
    (throughput,) = lines(caplog, WorkerStats(decode_graph_steps=10))
    assert throughput.startswith("prompt 0 tok/s")
