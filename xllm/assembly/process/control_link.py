"""The private socket pair between a server and its engine process: JSON lines, both ways.

The server sends one ``Launch``, later ``ping`` lines; the engine answers each with a ``Pong``
from a thread of its own, so an answer proves that the process is scheduled and its interpreter
turns, and says how long the running step has taken. End of file tells either side that the other
is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import msgspec

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles

PING = b"ping\n"


class Launch(msgspec.Struct, frozen=True):
    """All that an engine process needs to know. Travels on an inherited socket, never by name."""

    config: XllmConfig
    files: ModelFiles
    socket_folder: str  # the engine makes it, both ends remove it
    peer_id: bytes


class Pong(msgspec.Struct, frozen=True):
    """A sign of life. ``step_seconds`` is how long the step that runs now has taken, 0 if none."""

    step_seconds: float


class EngineEnd:
    """The engine's end; blocking, for the watch thread."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("rb")

    def read_launch(self) -> Launch:
        """The first line.

        Raises:
            EOFError: the server died first.
        """
        line = self._lines.readline()
        if not line:
            raise EOFError("the server is gone")
        return msgspec.json.decode(line, type=Launch)

    def serve(self, step_seconds: Callable[[], float]) -> None:
        """Answer pings until the server is gone."""
        try:
            while self._lines.readline():
                self._socket.sendall(msgspec.json.encode(Pong(step_seconds())) + b"\n")
        except OSError:
            return
