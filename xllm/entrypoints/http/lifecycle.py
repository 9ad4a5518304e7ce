"""A server's life: bind, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn
import uvloop

from xllm.assembly.families.llm import ServingStack
from xllm.assembly.process.engine_client import EngineFailed
from xllm.assembly.process.spawn import SpawnedEngine
from xllm.assembly.registry import build
from xllm.core.config import ServerConfig, XllmConfig
from xllm.core.observability.logging import configure_logging, get_logger
from xllm.entrypoints.http.activity import Activity
from xllm.entrypoints.http.app import create_app
from xllm.entrypoints.http.connection import GuardedHttpProtocol
from xllm.entrypoints.http.listener import Listener
from xllm.entrypoints.http.startup import StartupReport

logger = get_logger(__name__)

_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_GC_OBJECTS = 20_000
# How long a thread that prepares a long prompt waits for a busy event loop to let it go on.
_SWITCH_SECONDS = 0.0005
# A server whose engine died answers 503 this long, so that probes see it, then exits.
_DEAD_SECONDS = 5.0
# One request to stop may arrive as several signals: timeout(1) and terminals tell the process and
# its group. Only a later one means "at once".
_ECHO_SECONDS = 0.25


def serve(config: XllmConfig, engine: SpawnedEngine) -> int:
    """Serve until told to stop; returns the process's exit code.

    A start that fails (port in use, no such model, no memory) prints one line and returns 1.

    Args:
        config: what was asked for.
        engine: ends when this process does, or sooner.
    """
    configure_logging(config.observability.log_level, config.observability.log_format)
    _raise_file_limit()
    try:
        listener = bind(config.server)
        with contextlib.closing(listener):
            return uvloop.run(_Server(config, listener, engine).run())
    except (ValueError, EngineFailed) as error:
        if config.observability.log_format == "json":
            logger.error("%s", error)
        else:
            print(f"xllm: error: {error}", file=sys.stderr)
        return 1


def bind(config: ServerConfig) -> socket.socket:
    """A listening socket, so that a port in use fails before a model is looked for.

    Raises:
        ValueError: the address is taken or not ours; the message names host and port.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ValueError(
            f"--port {config.port} on {config.host} cannot be used: {error.strerror}"
        ) from None
    return listener


class _Server:
    """One run of the server; signals and the engine's death meet in ``_stop``."""

    def __init__(self, config: XllmConfig, listener: socket.socket, engine: SpawnedEngine) -> None:
        self._config = config
        self._listener = listener
        self._stop = asyncio.Event()
        self._first_signal = 0.0  # time.monotonic()
        self._report = StartupReport(config.observability.log_format)
        self._stack: ServingStack = build(config, self._report.progress, spawned=engine)
        self._activity = Activity()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        self._report.banner(self._config)
        self._warn_if_open()
        traced = self._config.observability.otlp_traces_endpoint is not None
        app = create_app(self._stack, self._config.server, self._activity, traced=traced)
        web = WebServer(app)
        serving = asyncio.create_task(web.serve(sockets=[self._listener]))
        try:
            return await self._live()
        finally:
            web.stop()
            await self._stack.close()
            await serving

    async def _live(self) -> int:
        starting = asyncio.create_task(self._stack.start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        ready = starting.result()
        gc.freeze()  # full collections need not walk what start-up built: 0.1 s without a token
        # By default every 700 new objects are looked through, a third of what an intake costs.
        gc.set_threshold(_GC_OBJECTS)
        sys.setswitchinterval(_SWITCH_SECONDS)
        host, port = self._listener.getsockname()[:2]
        services = self._stack.services
        chats = services is not None and services.factory.prompts.has_chat_template
        self._report.ready(ready, self._config, f"http://{_url_host(host)}:{port}", chats)
        dying = asyncio.create_task(self._stack.died.wait())
        await asyncio.wait({dying, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _DEAD_SECONDS)
            return 1
        dying.cancel()
        await self._drain()
        return 0

    async def _drain(self) -> None:
        timeout = self._config.server.shutdown_timeout
        self._stack.drain()
        logger.info("draining: %d requests, at most %g s", self._num_owed, timeout)
        if not await self._wait_answered(timeout):
            logger.warning("ending %d unfinished requests", self._num_owed)
            self._stack.fail_open("the server is shutting down")
            await self._wait_answered(1.0)

    @property
    def _num_owed(self) -> int:
        return self._activity.num_active + self._stack.num_background

    async def _wait_answered(self, timeout_seconds: float) -> bool:
        """Whether every answer was given within the time, also those that nobody waits for."""
        deadline = time.monotonic() + timeout_seconds
        # A request may still begin a response in the background, which a client then fetches.
        return (
            await self._activity.wait_idle(timeout_seconds)
            and await self._stack.wait_background(deadline - time.monotonic())
            and await self._activity.wait_idle(deadline - time.monotonic())
        )

    def _warn_if_open(self) -> None:
        host = self._listener.getsockname()[0]
        if not self._config.server.api_key and not ipaddress.ip_address(host).is_loopback:
            logger.warning("%s is not a loopback address and no --api-key is set", host)

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if not self._stop.is_set():
            self._first_signal = now
            self._stop.set()
        elif now - self._first_signal > _ECHO_SECONDS:
            self._stack.kill()
            os._exit(128 + number)


class WebServer(uvicorn.Server):
    """uvicorn without its signal handling, its ten ticks a second and its way to accept."""

    def __init__(self, app: object) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=GuardedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
                backlog=_BACKLOG,
            )
        )
        self._stopping = asyncio.Event()
        self._listeners: list[Listener] = []

    def stop(self) -> None:
        """Close the listener and every connection."""
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        """Signals are the lifecycle's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets=[])
        self._listeners = [Listener(each, self._new_protocol) for each in sockets or ()]

    async def main_loop(self) -> None:
        """Sleep until the end."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more and close every connection."""
        for listener in self._listeners:
            listener.close()
            await listener.wait_closed()
        await super().shutdown(sockets)

    def _new_protocol(self) -> GuardedHttpProtocol:
        return GuardedHttpProtocol(self.config, self.server_state, self.lifespan.state)


def _url_host(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _raise_file_limit() -> None:
    """Every connection is a descriptor, and the usual soft limit of 1,024 is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
