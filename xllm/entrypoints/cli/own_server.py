"""A server of one's own for the time of a command: started here, ended here."""

from __future__ import annotations

import ctypes
import json
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from xllm.core.config.env import child_environment
from xllm.entrypoints.cli.remote import Remote

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.1
_END_SECONDS = 10.0


class OwnServer:
    """``with OwnServer(values) as remote:`` serves a model on a free local port.

    A random key keeps other users of the machine out; it travels in a file that only this user
    can read. The server ends with the block, and with this process if that is killed.

    Args:
        values: options by field name, e.g. ``{"model": "smollm2"}``.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Remote:
        port, key = _free_port(), secrets.token_urlsafe(24)
        own = {"host": "127.0.0.1", "port": port, "api_key": [key], "log_stats_interval": 0}
        libc = ctypes.CDLL(None)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"log_level": "warning", **self._values, **own}, file)
            file.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "xllm.entrypoints.cli.main", "serve", "--config", file.name],
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C stops an answer, not the server
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
            try:
                return self._wait(Remote(f"http://127.0.0.1:{port}", key))
            except BaseException:
                self._end()
                raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _wait(self, remote: Remote) -> Remote:
        assert self._process is not None
        while not remote.ready():
            if self._process.poll() is not None:
                raise ValueError("the server did not start; its message is above")
            time.sleep(_POLL_SECONDS)
        return remote

    def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
