import asyncio
import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.cli.fake_server import FakeServer
from xllm.entrypoints.cli import main as cli
from xllm.entrypoints.cli.bench import latency, options, serve, throughput
from xllm.entrypoints.cli.bench.client import Record, StreamingClient

TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         1
Maximum request concurrency:             4
Request rate configured (RPS):           2.50
Benchmark duration (s):                  4.00
Total input tokens:                      30
Total generated tokens:                  6
Request throughput (req/s):              0.50
Output token throughput (tok/s):         1.50
Peak output token throughput (tok/s):    3.00
Peak concurrent requests:                3.00
Total token throughput (tok/s):          9.00
---------------Time to First Token----------------
Mean TTFT (ms):                          750.00
Median TTFT (ms):                        750.00
P99 TTFT (ms):                           995.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          750.00
Median TPOT (ms):                        750.00
P99 TPOT (ms):                           995.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           750.00
Median ITL (ms):                         750.00
P99 ITL (ms):                            1000.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          3000.00
Median E2EL (ms):                        3000.00
P99 E2EL (ms):                           3980.00
=================================================="""

RECORDS = [
    Record(10, 100.0, 102.0, [100.5, 101.0, 101.5], 3),
    Record(20, 100.0, 104.0, [101.0, 102.0, 103.0], 3),
    Record(30, 100.0, 100.1, error="503 no room"),
]


@pytest.fixture
def arguments(tmp_path):
    def parse(*flags):
        import argparse

        parser = argparse.ArgumentParser()
        serve.add_arguments(parser)
        return parser.parse_args([*flags, "--disable-tqdm", "--result-dir", str(tmp_path)])

    return parse


def test_the_serving_table_has_the_layout_that_others_parse(arguments):
    args = arguments("--max-concurrency", "4", "--request-rate", "2.5")
    found = serve.figures(RECORDS, [99])
    lines = [line.rstrip() for line in serve.table(args, found)]
    assert "\n".join(lines) == TABLE


def test_figures_without_one_success_are_zero_and_finite():
    found = serve.figures(RECORDS[2:], [99])
    assert (found["completed"], found["failed"]) == (0, 1)
    assert all(np.isfinite(value) for value in found.values())


def test_the_peak_counts_tokens_not_events():
    # Two tokens per event: an engine that emits several at once is no slower for it.
    found = serve.figures([Record(1, 0.0, 2.0, [0.5, 1.5], 4)], [])
    assert found["max_output_tokens_per_s"] == 2.0


def test_every_request_is_sent_exact_and_streamed(arguments, capsys):
    with FakeServer() as server:
        args = arguments("--url", server.url, "--dataset", "fixed:4:3", "--num-prompts", "5")
        assert serve.run(args) == 0
    assert len(server.bodies) == 6  # one warms up
    assert server.bodies[0]["prompt"] not in [body["prompt"] for body in server.bodies[1:]]
    for body in server.bodies:
        assert (body["model"], body["max_tokens"], len(body["prompt"])) == ("fake", 3, 4)
        assert body["ignore_eos"] and body["stream"] and body["temperature"] == 0
        assert body["stream_options"] == {"include_usage": True}
    assert "Total generated tokens:                  15" in capsys.readouterr().out


def test_save_result_writes_the_median_run_and_every_run(arguments, tmp_path):
    with FakeServer() as server:
        flags = ("--dataset", "fixed:4:3", "--num-prompts", "2", "--num-runs", "3")
        args = arguments(
            "--url", server.url, *flags, "--save-result", "--result-filename", "r.json"
        )
        assert serve.run(args) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["model_id"] == "fake" and result["dataset"] == "fixed:4:3"
    rates = sorted(run["output_throughput"] for run in result["runs"])
    assert len(rates) == 3 and result["output_throughput"] == rates[1]
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"mean_{name}_ms", f"median_{name}_ms", f"p99_{name}_ms"} <= result.keys()


def test_failures_are_counted_and_end_with_an_error(arguments, capsys):
    with FakeServer(status=503) as server:
        flags = ("--dataset", "fixed:4:3", "--num-prompts", "2", "--num-warmups", "0")
        assert serve.run(arguments("--url", server.url, *flags)) == 1
    out, err = capsys.readouterr()
    assert "Failed requests:                         2" in out
    assert "no room" in err


def test_a_server_that_is_not_there_is_one_line(capsys):
    flags = ["--url", "http://127.0.0.1:9", "--dataset", "fixed:1:1", "--num-prompts", "1"]
    assert cli.main(["bench", "serve", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--url http://127.0.0.1:9" in line


def complete(server, count=1):
    async def run():
        client = StreamingClient(server.url, "secret")
        records = [await client.complete(b"{}", 7) for _ in range(count)]
        client.close()
        return records

    return asyncio.run(run())


def test_the_client_keeps_its_connection_and_sends_the_key():
    with FakeServer(num_tokens=4) as server:
        records = complete(server, count=3)
        assert server.num_connections == 1
    assert [header["Authorization"] for header in server.headers] == ["Bearer secret"] * 3
    for record in records:
        assert record.ok and record.num_output_tokens == 4 and len(record.stamps) == 4
        assert record.start <= record.stamps[0] <= record.stamps[-1] <= record.end


def test_a_stream_without_usage_is_a_failure():
    with FakeServer(usage=False) as server:
        (record,) = complete(server)
    assert not record.ok and "usage" in record.error


def test_arrivals_keep_the_rate_and_begin_at_once():
    times = serve.arrivals(4000, 20.0, 1.0, 0)
    assert times[0] == 0.0 and times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(20.0, rel=0.05)
    assert serve.arrivals(3, float("inf"), 1.0, 0) == [0.0] * 3


def test_even_arrivals_vary_less_than_bursts():
    even, bursts = (np.diff(serve.arrivals(2000, 10.0, b, 0)).std() for b in (10.0, 0.2))
    assert even < 0.1 < bursts


def test_the_median_run_of_an_even_number_is_the_lower_one():
    runs = [{"speed": value} for value in (4, 1, 3, 2)]
    assert options.median_run(runs, "speed") == {"speed": 2}


@pytest.mark.parametrize("text", ["", "abc", "101", "-1", "50,"])
def test_senseless_percentiles_name_the_flag(text):
    with pytest.raises(ValueError, match="--metric-percentiles"):
        options.percentiles(text)


def test_the_throughput_lines_have_the_layout_that_others_parse():
    from xllm.entrypoints.cli.bench.workloads import BenchRequest

    found = throughput.figures([BenchRequest([1] * 30, 10), BenchRequest([1] * 20, 40)], 2.0)
    assert throughput.table(found) == [
        "Throughput: 1.00 requests/s, 50.00 total tokens/s, 25.00 output tokens/s",
        "Total num prompt tokens:  50",
        "Total num output tokens:  50",
    ]


def test_latency_splits_a_batch_into_prefill_and_decode():
    found = latency.figures([(0.5, 1.5), (0.5, 1.5)], batch_size=2, input_len=100, output_len=11)
    assert found["prefill_tokens_per_second"] == pytest.approx(400.0)
    assert found["median_tpot_ms"] == pytest.approx(100.0)
    assert found["decode_tokens_per_second"] == pytest.approx(20.0)
    assert latency.table(found)[0] == "Avg latency: 1.5 seconds"


@pytest.mark.parametrize("flags", [(), ("--disable-tqdm",)])
def test_the_batches_of_a_latency_run_are_counted(monkeypatch, capsys, flags):
    from xllm.entrypoints.offline import LLM

    class Fake(contextlib.nullcontext):
        max_model_len = vocab_size = 1000

        def __enter__(self):
            return self

        def generate(self, prompts, params, use_tqdm):
            metrics = SimpleNamespace(arrival_time=0.0, first_token_time=0.5, finished_time=1.5)
            return [SimpleNamespace(metrics=metrics) for _ in prompts]

    monkeypatch.setattr(LLM, "from_config", lambda config: Fake())
    arguments = ["bench", "latency", "--num-iters", "3", "--num-iters-warmup", "1", *flags]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Avg latency: 1.5 seconds" in out
    assert ("4/4" in err) is not bool(flags)


def test_latency_of_one_token_has_no_decode():
    found = latency.figures([(0.5, 0.5)], batch_size=1, input_len=10, output_len=1)
    assert "median_tpot_ms" not in found and len(latency.table(found)) == 8
