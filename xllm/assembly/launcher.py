"""The server's handle on its engine process."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from xllm.assembly.control_link import PING, Launch, Pong


class EngineProcess:
    """Starts an engine process and notices at once when it ends.

    Args:
        on_exit: called once on the loop with a sentence when the process ends unasked.
    """

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._tasks: list[asyncio.Task[None]] = []
        self._pong: asyncio.Future[Pong] | None = None
        self._closing = False

    async def start(self) -> None:
        """Start the process, which then waits for ``launch``."""
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "xllm.assembly.process_main", str(fd)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,  # stray prints of libraries do not mix with the user's output
                pass_fds=(fd,),
                # Ctrl-C in a terminal reaches the server alone, which then drains.
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._tasks = [
            asyncio.create_task(self._watch_exit()),
            asyncio.create_task(self._read_pongs()),
        ]

    def launch(self, launch: Launch) -> None:
        """Tell the process what to be."""
        self._writer.write(msgspec.json.encode(launch) + b"\n")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self.alive else None

    async def ping(self, timeout_seconds: float) -> Pong | None:
        """Ask for a sign of life; None when there was none in time. Callers share one ping."""
        if not self.alive or self._writer.is_closing():
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
        if self._process is None:
            return
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _watch_exit(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        if not self._closing:
            self._on_exit(_describe_exit(code))

    async def _read_pongs(self) -> None:
        while line := await self._reader.readline():
            if self._pong is not None and not self._pong.done():
                self._pong.set_result(msgspec.json.decode(line, type=Pong))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the engine process was killed by {name}"
