"""Real weights behind the real server on a GPU give the CPU's greedy tokens in float32."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from xllm import LLM, SamplingParams
from xllm.modeling.weights.bundled import bundled_path, pull

NUM_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n",
    "The three states of matter are",
    "To bake bread you need",
]


@pytest.mark.weights
def test_served_tokens_equal_the_cpus(tmp_path: Path) -> None:
    bundled_path("smollm2") or pull("smollm2")
    options = {"dtype": "float32", "max_model_len": 1024}
    llm = LLM("smollm2", device="cpu", **options)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    expected = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
    llm.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "xllm.entrypoints.cli.main", "serve", "smollm2", *flags]
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--device=cuda", f"--port={port}"], stdout=out, stderr=out
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            _wait_ready(http, server, log)
            body = {
                "model": "smollm2",
                "prompt": PROMPTS,
                "max_tokens": NUM_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            choices = http.post("/v1/completions", json=body).raise_for_status().json()["choices"]
            metrics = http.get("/metrics").text
    finally:
        server.terminate()
        server.wait(30)
    assert [choice["text"] for choice in choices] == [output.text for output in expected]
    assert [choice["token_ids"] for choice in choices] == [
        list(output.token_ids) for output in expected
    ]
    replays = re.findall(
        r'^xllm:engine_steps_run_total\{.*"decode_graph".*\} (\S+)', metrics, re.MULTILINE
    )
    assert float(replays[0]) >= NUM_TOKENS - 1, metrics


def _wait_ready(http: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        try:
            if http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())
