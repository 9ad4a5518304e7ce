"""Faults injected into a running server: what the client sees, and that all others go on."""

import concurrent.futures
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Server, running

FOLDER = Path(__file__).parent / "faults"


def _seeds() -> dict[str, int]:
    """The seeds by name, read without installing the faults here."""
    text = (FOLDER / "sitecustomize.py").read_text()
    line = next(line for line in text.splitlines() if "= range(" in line)
    names, _, call = line.partition(" = range(")
    first = int(call.split(",")[0])
    return {name.strip().lower(): first + i for i, name in enumerate(names.split(","))}


SEEDS = _seeds()
# Fault: (what asks for it, status, message of a whole answer).
FAULTS: dict[str, tuple[dict[str, Any], int, str]] = {
    name: ({"seed": SEEDS[name]}, 500, message)
    for name, message in {
        "sampler_row": "internal error",
        "sampler_step": "injected",
        "logits_nan": "not finite",
        "detokenizer": "internal error",
        "intake": "internal error",
    }.items()
} | {
    "grammar_row": ({"structured_outputs": {"choice": ["faultyrow"]}}, 500, "internal error"),
    "grammar_step": ({"structured_outputs": {"choice": ["faultystep"]}}, 500, "injected"),
}


@pytest.fixture(scope="module")
def faulty(model: Path) -> Iterator[Server]:
    paths = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER), str(Path.cwd()), paths]))
    try:
        with running(model) as server:
            yield server
    finally:
        os.environ["PYTHONPATH"] = paths


def ask(server: Server, **body: Any) -> httpx.Response:
    return server.complete(temperature=0, ignore_eos=True, max_tokens=24, **body)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_hits_its_own_request(faulty: Server, fault: str, stream: bool) -> None:
    fields, status, message = FAULTS[fault]
    engine = faulty.engine_pid()
    expected = ask(faulty, prompt="Another").json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        others = [pool.submit(ask, faulty, prompt="Another") for _ in range(4)]
        hit = pool.submit(ask, faulty, stream=stream, **fields).result()
        answers = [other.result() for other in others]
    if hit.status_code == 200:  # the headers had gone out
        assert stream
        *_, last = [line for line in hit.text.splitlines() if line.startswith("data: {")]
        error = json.loads(last[6:])["error"]
        assert error["code"] == status
    else:
        assert hit.status_code == status
        error = hit.json()["error"]
    assert message in error["message"].lower()
    assert [a.json()["choices"][0]["text"] for a in answers] == [expected] * 4
    after = ask(faulty, prompt="Another")
    assert after.json()["choices"][0]["text"] == expected
    assert faulty.engine_pid() == engine
    load = faulty.http.get("/load").json()
    assert (load["num_running"], load["num_waiting"], load["server_load"]) == (0, 0, 0)
