"""The server's handle on its engine process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable

import msgspec

from xllm.assembly.process.control_link import PING, Launch, Pong
from xllm.assembly.process.spawn import SpawnedEngine, spawn_engine


class EngineProcess:
    """Starts an engine process, or takes one that was, and notices at once when it ends.

    Args:
        on_exit: called once on the loop with a sentence when the process ends unasked.
        device: see ``spawn_engine``.
        spawned: a process that was started before.
    """

    def __init__(
        self, on_exit: Callable[[str], None], device: str, spawned: SpawnedEngine | None = None
    ) -> None:
        self._on_exit = on_exit
        self._device = device
        self._spawned = spawned
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_code: asyncio.Future[int]
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pong: asyncio.Future[Pong] | None = None
        self._closing = False

    async def start(self) -> None:
        """Start the process, which then waits for ``launch``."""
        spawned = self._spawned = self._spawned or spawn_engine(self._device)
        self._process = spawned.process
        self._exit_code = _exit_code(spawned.process)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=spawned.link)
        self._tasks = [
            asyncio.create_task(self._watch_exit()),
            asyncio.create_task(self._read_pongs()),
        ]

    def launch(self, launch: Launch) -> None:
        """Tell the process what to be."""
        assert self._writer is not None
        self._writer.write(msgspec.json.encode(launch) + b"\n")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and not self._exit_code.done()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self.alive else None

    async def ping(self, timeout_seconds: float) -> Pong | None:
        """Ask for a sign of life; None when there was none in time. Callers share one ping."""
        if not self.alive or self._writer is None or self._writer.is_closing():
            return None
        if self._pong is None or self._pong.done():
            self._pong = asyncio.get_running_loop().create_future()
            self._writer.write(PING)
        try:
            return await asyncio.wait_for(asyncio.shield(self._pong), timeout_seconds)
        except TimeoutError:
            return None

    async def close(self, grace_seconds: float = 2.0) -> None:
        """Let the process end by closing its link; kill it after ``grace_seconds``."""
        self._closing = True
        if self._process is None or self._spawned is None:
            return
        if self._writer is not None:
            self._writer.close()
        else:  # told to stop before the link was ours
            self._spawned.link.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._exit_code), grace_seconds)
        except TimeoutError:
            self.kill()
            await self._exit_code
        for task in self._tasks:
            task.cancel()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self.alive:
            self._process.kill()

    async def _watch_exit(self) -> None:
        code = await asyncio.shield(self._exit_code)
        if not self._closing:
            self._on_exit(_describe_exit(code))

    async def _read_pongs(self) -> None:
        with contextlib.suppress(ConnectionError):  # it died without having read a ping
            while line := await self._reader.readline():
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(msgspec.json.decode(line, type=Pong))


def _exit_code(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Done on the running loop as soon as the process has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(ended.set_result, code)

    threading.Thread(target=wait, name="engine-exit", daemon=True).start()
    return ended


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the engine process was killed by {name}"
