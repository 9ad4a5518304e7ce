"""The story of a start: it is for people, and nothing depends on anybody reading it."""

import errno
import io

import pytest

from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress, EngineReady
from xllm.entrypoints.http.startup import StartupReport


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Broken(_Terminal):
    """A pipe whose reader has left, or a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.EPIPE, "Broken pipe")


def tell() -> None:
    report = StartupReport()
    report.banner(XllmConfig())
    report.progress(EngineProgress("load weights", 0.5))
    ready = EngineReady("m", 512, 100, 4096, 8.0)
    report.ready(ready, XllmConfig(), "http://127.0.0.1:8000", True)


def test_a_start_ends_with_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    tell()
    told = terminal.getvalue()
    assert " 50%" in told and "KV cache: 4,096 tokens" in told
    assert "http://127.0.0.1:8000/v1" in told.splitlines()[-2]
    assert told.splitlines()[-1].startswith("try: curl ")


def test_a_reader_that_leaves_stops_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", _Broken())
    tell()
