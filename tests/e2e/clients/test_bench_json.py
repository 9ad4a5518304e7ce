"""A result file of ``xllm bench serve`` has what readers of vLLM's files look for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import KEY, Server

# What vLLM's `bench serve --save-result` writes and its dashboards read.
COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens", "num_prompts")
RATES = ("duration", "request_throughput", "output_throughput", "total_token_throughput")
LATENCIES = [
    f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl") for kind in ("mean", "median", "std")
] + [f"p99_{name}_ms" for name in ("ttft", "tpot", "itl")]


def test_the_file_is_read_back(server: Server, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "xllm.entrypoints.cli.main", "bench", "serve"),
        *("--base-url", str(server.http.base_url), "--model", "tiny", "--api-key", KEY),
        *("--dataset-name", "fixed:16:8", "--num-prompts", "6", "--vocab-size", "250"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    result = json.loads((tmp_path / "r.json").read_text())
    assert [result[name] for name in COUNTS] == [6, 0, 6 * 16, 6 * 8, 6]
    assert all(result[name] > 0 for name in RATES)
    assert result["output_throughput"] == pytest.approx(6 * 8 / result["duration"])
    assert all(result[name] >= 0 for name in LATENCIES)
    assert result["model_id"] == "tiny"
    assert {"date", "request_rate", "max_concurrency"} <= result.keys()
