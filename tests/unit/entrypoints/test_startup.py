"""The story of a start: it is for people, and nothing depends on anybody reading it."""

import contextlib
import errno
import io
import json
import logging
import shlex
from collections.abc import Iterator

import pytest

from xllm.assembly.process.spawn import SpawnedEngine
from xllm.core.config import ModelConfig, ObservabilityConfig, XllmConfig
from xllm.core.messages.server import EngineProgress, EngineReady
from xllm.core.observability.logging import configure_logging
from xllm.entrypoints.http import lifecycle
from xllm.entrypoints.http.startup import StartupReport


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Broken(_Terminal):
    """A pipe whose reader has left, or a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.EPIPE, "Broken pipe")


@contextlib.contextmanager
def json_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    configure_logging("info", "json")
    try:
        yield written
    finally:
        root = logging.getLogger("xllm")
        root.handlers.clear()
        root.setLevel(logging.NOTSET)
        root.propagate = True


def tell(log_format: str = "text", config: XllmConfig | None = None) -> None:
    config = config or XllmConfig()
    report = StartupReport(log_format)
    report.banner(config)
    report.progress(EngineProgress("load weights", 0.5))
    ready = EngineReady("m", 512, 100, 4096, 8.0)
    report.ready(ready, config, "http://127.0.0.1:8000", True)


def test_a_start_ends_with_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    tell()
    told = terminal.getvalue()
    assert " 50%" in told and "KV cache: 4,096 tokens" in told
    assert "http://127.0.0.1:8000/v1" in told.splitlines()[-2]
    assert told.splitlines()[-1].startswith("try: curl ")


def test_the_proposed_command_survives_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    name = "o'brien's \"model\" \x1b[2J"
    tell(config=XllmConfig(model=ModelConfig(served_model_name=name)))
    line = terminal.getvalue().splitlines()[-1]
    assert "\x1b" not in line
    assert json.loads(shlex.split(line)[-1])["model"] == name


def test_a_server_that_only_warns_proposes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    tell(config=XllmConfig(observability=ObservabilityConfig(log_level="warning")))
    assert terminal.getvalue().splitlines()[-1].startswith("ready in ")


def test_a_reader_that_leaves_stops_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", _Broken())
    tell()


def test_where_the_log_is_json_every_line_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    with json_log(monkeypatch) as written:
        tell("json")
    records = [json.loads(line) for line in written.getvalue().splitlines()]
    assert records[0]["message"].endswith(": smollm2")
    assert records[1]["message"].startswith("load weights: ")
    assert records[-1]["message"].startswith("try: curl ")


def test_where_the_log_is_json_a_start_that_fails_is_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(config: object) -> None:
        raise ValueError("--port 8000 cannot be used")

    monkeypatch.setattr(lifecycle, "bind", taken)
    config = XllmConfig(observability=ObservabilityConfig(log_format="json"))
    engine = object.__new__(SpawnedEngine)  # never reached
    with json_log(monkeypatch) as written:
        assert lifecycle.serve(config, engine) == 1
    record = json.loads(written.getvalue())
    assert (record["level"], record["message"]) == ("error", "--port 8000 cannot be used")
