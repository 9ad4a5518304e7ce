"""The engine process, as ``process_start`` runs it. Only a server starts one.

It dies with its server: a thread waits for the end of the control link, and once connected the
kernel kills it when its parent is gone. Signals of the terminal are the server's business.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from xllm.assembly.engine import Engine, build_engine
from xllm.assembly.process.control_link import EngineEnd, Launch
from xllm.core.channels import ServerChannel, SocketFolder
from xllm.core.messages.engine import Hello, ToEngine
from xllm.core.messages.server import EngineDead
from xllm.core.observability.logging import configure_logging, get_logger

logger = get_logger(__name__)

_PR_SET_PDEATHSIG = 1
# A server that started us connects at once; one that does not within this time never will.
_HELLO_SECONDS = 30.0


class _BadSettingError(Exception):
    """The engine cannot start as asked; the message is for people."""


class ParentWatch(threading.Thread):
    """Answers pings; when the server is gone, leaves nothing behind and ends the process.

    ``step_seconds`` tells how long the running step has taken; the loop's owner sets it.
    """

    def __init__(self, link: EngineEnd, folder: SocketFolder) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self._link = link
        self._folder = folder
        self.step_seconds: Callable[[], float] = lambda: 0.0

    def run(self) -> None:
        """Serve the control link until its end."""
        self._link.serve(lambda: self.step_seconds())
        self._folder.remove()
        os._exit(0)


def main() -> int:
    """Run one engine until its server closes the link; returns the exit code."""
    link = EngineEnd(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Libraries load while the server still looks for the model's files.
    threading.Thread(target=_preload, daemon=True).start()
    try:
        launch = link.read_launch()
    except EOFError:
        os._exit(0)  # without waiting for the imports
    observability = launch.config.observability
    configure_logging(observability.log_level, observability.log_format)
    folder = SocketFolder(Path(launch.socket_folder))
    watch = ParentWatch(link, folder)
    # In this order: a server that is gone already must find its watcher after the folder exists.
    folder.create()
    watch.start()
    channel = ServerChannel(folder.address, launch.peer_id, ToEngine)
    channel.open()
    try:
        _connect(channel, folder)
        engine = _build(channel, launch)
        watch.step_seconds = lambda: engine.loop.running_seconds
        channel.send(engine.ready)
        engine.loop.run()
    except _BadSettingError as error:
        channel.send(EngineDead(str(error)))
        return 1
    except Exception as error:
        logger.exception("the engine ends")
        channel.send(EngineDead(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


def _build(channel: ServerChannel, launch: Launch) -> Engine:
    try:
        return build_engine(launch.config, launch.files, channel, channel, channel.send)
    except (ValueError, MemoryError) as error:
        raise _BadSettingError(str(error)) from error


def _preload() -> None:
    """Import what a worker needs. Collecting garbage meanwhile, and what was imported with every
    full collection of the start, would take a tenth as long again and find next to nothing."""
    gc.disable()
    with contextlib.suppress(Exception):  # who needs it imports it again, and reports
        importlib.import_module("xllm.execution.worker")
    gc.freeze()
    gc.enable()


def _connect(channel: ServerChannel, folder: SocketFolder) -> None:
    messages = channel.receive(_HELLO_SECONDS)
    if not any(isinstance(message, Hello) for message in messages):
        raise RuntimeError("the server did not connect")
    folder.remove()
    # From here on there is nothing to clean up, so the kernel may end us without notice.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
