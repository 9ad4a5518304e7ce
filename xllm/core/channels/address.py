"""Where a local channel lives: a folder that only this user can enter, gone once connected."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path


class SocketFolder:
    """A temporary folder of mode 0700 for one ``ipc://`` socket.

    Both ends know its path before it exists and remove it as soon as they are connected: an
    established unix socket needs no name, and what has no name cannot be left behind by a kill.

    Args:
        path: where it is or will be; by default a new random place.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir(), f"xllm-{secrets.token_hex(8)}")

    @property
    def address(self) -> str:
        """The ZeroMQ address inside the folder."""
        return f"ipc://{self.path}/engine.sock"

    def create(self) -> None:
        """Make the folder.

        Raises:
            FileExistsError: something is there already; it is not ours and not used.
        """
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the folder and the socket file; harmless when already gone."""
        shutil.rmtree(self.path, ignore_errors=True)
