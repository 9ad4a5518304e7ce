"""Where a local channel lives: a folder that only this user can enter, gone once connected."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


class SocketFolder:
    """A temporary folder of mode 0700 for one ``ipc://`` socket.

    Both ends remove it as soon as they are connected: an established unix socket needs no name,
    and what has no name cannot be left behind by a kill.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="xllm-"))  # mkdtemp makes it 0700

    @property
    def address(self) -> str:
        """The ZeroMQ address inside the folder."""
        return f"ipc://{self.path}/engine.sock"

    def remove(self) -> None:
        """Remove the folder and the socket file; harmless when already gone."""
        remove_socket_folder(self.path)


def remove_socket_folder(path: Path) -> None:
    """Remove a socket folder, whoever made it; harmless when already gone."""
    shutil.rmtree(path, ignore_errors=True)
