"""Starts real servers on the tiny model and looks at them from outside."""

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tiny_model import write_tiny_model

KEY = "sk-test"
START_SECONDS = 120.0
# A folder of our own for what servers leave lying about: others may run servers here too.
tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="e2e-")
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Server:
    """One ``xllm serve`` process, its log and its client."""

    def __init__(self, model: Path, *flags: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.log_path = Path(tempfile.mkstemp(prefix="e2e-", suffix=".log")[1])
        command = [
            *(sys.executable, "-m", "xllm.entrypoints.cli.main", "serve", str(model)),
            *("--load-format", "dummy", "--port", str(self.port), "--api-key", KEY),
            # One thread: threads that wait for each other stall when the machine is busy.
            *("--num-threads", "1"),
            *("--num-kv-tokens", "4096", "--served-model-name", "tiny", *flags),
        ]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=60,
            trust_env=False,
        )

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> "Server":
        """Wait until /health says 200."""
        wait(lambda: self.health() == 200, START_SECONDS, lambda: self.log)
        return self

    def health(self) -> int:
        """Status of /health; 0 when refused; raises when the process has ended."""
        assert self.process.poll() is None, self.log
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return 0

    def children(self) -> list[int]:
        """Process ids of the server's children."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def engine_pid(self) -> int:
        """Process id of the engine."""
        (pid,) = self.children()
        return pid

    def complete(self, **body: Any) -> httpx.Response:
        """A completion request."""
        content = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, **body}
        return self.http.post("/v1/completions", json=content)

    @contextlib.contextmanager
    def stream(self, **body: Any) -> Iterator[httpx.Response]:
        """A streamed completion request."""
        content = {"model": "tiny", "prompt": "Once", "stream": True, "ignore_eos": True, **body}
        with self.http.stream("POST", "/v1/completions", json=content) as response:
            yield response

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, the model label left out."""
        found = {}
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r',?model_name="tiny",?', "", name).replace("{}", "")
                found[name] = float(value)
        return found

    def stop(self) -> None:
        """End it, whatever state it is in."""
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.log_path.unlink(missing_ok=True)


@contextlib.contextmanager
def running(model: Path, *flags: str, ready: bool = True, **options: Any) -> Iterator[Server]:
    """A server, stopped at the end."""
    server = Server(model, *flags, **options)
    try:
        yield server.wait_ready() if ready else server
    finally:
        server.stop()


def tiny_model() -> Path:
    """The folder of the tiny model."""
    return write_tiny_model(Path(tempfile.gettempdir()) / f"tiny-model-{os.getuid()}")


def wait(condition: Callable[[], Any], seconds: float, why: Callable[[], str] = str) -> float:
    """Wait until ``condition`` holds; the seconds it took. Fails with ``why()``."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s: {why()}"
        time.sleep(0.02)
    return time.monotonic() - begin


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def leftovers() -> set[str]:
    """Socket folders and shared memory that exist now."""
    folders = {str(p) for p in Path(tempfile.gettempdir()).glob("xllm-*")}
    return folders | {str(p) for p in Path("/dev/shm").iterdir()}


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal."""
    os.kill(pid, number)
