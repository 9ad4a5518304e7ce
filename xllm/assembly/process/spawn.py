"""Starts an engine process. Imports next to nothing, so that it can come before everything else:
the engine loads its libraries, which takes longest, while the server still loads its own."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys


@dataclasses.dataclass(frozen=True, slots=True)
class SpawnedEngine:
    """A process that waits for its ``Launch`` at the other end of ``link``, and ends with it."""

    process: subprocess.Popen[bytes]
    link: socket.socket


def spawn_engine(device: str) -> SpawnedEngine:
    """Start an engine process.

    Args:
        device: the value of ``--device``; unless it is ``cpu``, a GPU's driver is started early.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "xllm.assembly.process.process_start", str(fd), device],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,  # stray prints of libraries do not mix with the user's output
            pass_fds=(fd,),
            # Ctrl-C in a terminal reaches the server alone, which then drains.
            start_new_session=True,
        )
    return SpawnedEngine(process, ours)
