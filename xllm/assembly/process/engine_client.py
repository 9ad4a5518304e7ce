"""The frontend's ``EngineClient`` over a channel to an engine process."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Sequence

from xllm.assembly.process.control_link import Launch
from xllm.assembly.process.launcher import EngineProcess
from xllm.assembly.process.observer import RequestObserver
from xllm.assembly.process.spawn import SpawnedEngine
from xllm.assembly.process.stats_log import StatsLog
from xllm.core.channels import ClientChannel, SocketFolder
from xllm.core.config import ServerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.engine import (
    AbortRequests,
    AddRequests,
    Hello,
    LoadAdapter,
    Profile,
    ResetPrefixCache,
    UnloadAdapter,
)
from xllm.core.messages.server import (
    AdapterLoaded,
    EngineDead,
    EngineProgress,
    EngineReady,
    EngineStats,
    OutputBatch,
    Profiled,
    ToServer,
)
from xllm.core.observability.logging import get_logger
from xllm.core.observability.metrics import ServerMetrics
from xllm.core.observability.tracing import open_tracer
from xllm.core.request.request import Request
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.services.answers.engine_client import OutputSink

logger = get_logger(__name__)

# While requests are open, the engine is asked for a sign of life this often,
_WATCH_SECONDS = 1.0
# is given up after this long without one,
_SILENCE_SECONDS = 10.0
# or when one step has taken longer than any honest step does.
_STEP_LIMIT_SECONDS = 300.0
# How long /health waits for a sign of life.
_HEALTH_SECONDS = 1.5


class EngineFailed(RuntimeError):
    """The engine ended before it was ready; the message says why."""


class ProcessEngineClient:
    """Owns one engine process: starts it, feeds it, notices its death, ends it.

    Made on the event loop that it lives on.

    Args:
        config: the whole configuration; the engine process receives all but the server's slice.
        metrics: the server's instruments.
        on_progress: called with each start-up message of the engine.
        on_death: called once when the engine has ended unasked, after its requests have failed.
        spawned: its process, if it runs already.
    """

    def __init__(
        self,
        config: XllmConfig,
        metrics: ServerMetrics,
        on_progress: Callable[[EngineProgress], None],
        on_death: Callable[[], None],
        spawned: SpawnedEngine | None = None,
    ) -> None:
        self._max_requests = config.scheduler.max_waiting
        self._max_sequences = config.scheduler.max_num_seqs + self._max_requests
        self._metrics = metrics
        self._on_progress = on_progress
        self._on_death = on_death
        endpoint = config.observability.otlp_traces_endpoint
        self._tracer = open_tracer(endpoint, config.model.api_name) if endpoint else None
        self._observer = RequestObserver(
            metrics,
            config.observability.log_requests,
            self._tracer.record if self._tracer else None,
        )
        self._stats_log = StatsLog(config.observability.log_stats_interval)
        self._sink: OutputSink | None = None
        self._ready: EngineReady | None = None
        self._stats = EngineStats()
        self._ending = False
        self._death: str | None = None
        self._loaded = asyncio.get_running_loop().create_future()
        self._loading: dict[str, asyncio.Future[AdapterLoaded]] = {}  # adapters, by name
        self._profiling: asyncio.Future[Profiled] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._folder = SocketFolder()
        self._peer_id = secrets.token_bytes(16)
        self._channel = ClientChannel(
            self._folder.address, self._peer_id, ToServer, self._on_messages
        )
        # The engine needs nothing of the server's slice, least of all its keys: but a configuration
        # with a profiler's folder is only one with the administration routes.
        server = ServerConfig(enable_admin=config.server.enable_admin)
        self._engine_config = dataclasses.replace(config, server=server)
        self._process = EngineProcess(self._on_exit, config.execution.device, spawned)

    async def spawn(self) -> None:
        """Have the engine process, which loads its libraries until it is told the model."""
        await self._process.start()

    async def load(self, files: ModelFiles) -> EngineReady:
        """Tell the engine the model and wait until it can make its first token.

        Raises:
            EngineFailed: it could not.
        """
        folder, peer_id = str(self._folder.path), self._peer_id
        self._process.launch(Launch(self._engine_config, files, folder, peer_id))
        try:
            self._channel.open()
            self._channel.send(Hello())
            return await self._loaded
        finally:
            self._folder.remove()

    async def close(self) -> None:
        """End the engine process and release the channel; open requests fail."""
        self._ending = True
        if self._watcher is not None:
            self._watcher.cancel()
        await self._process.close()
        self._fail_waiting()
        if self._observer.num_open:
            self.fail_open(self._unavailable())
        self._channel.close()
        self._folder.remove()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def kill(self) -> None:
        """End the engine process at once, without waiting."""
        self._process.kill()
        self._folder.remove()

    @property
    def ready(self) -> EngineReady | None:
        """What the engine announced, or None while it loads."""
        return self._ready

    @property
    def stats(self) -> EngineStats:
        """The latest gauges and counters."""
        return self._stats

    @property
    def healthy(self) -> bool:
        """Whether requests may be sent now: loaded, alive and not ending."""
        return self._ready is not None and self._death is None and not self._ending

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return self._observer.num_open

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine while it runs."""
        return self._process.pid

    async def check_health(self) -> bool:
        """``healthy``, confirmed by a sign of life from the process itself."""
        if not self.healthy:
            return False
        pong = await self._process.ping(_HEALTH_SECONDS)
        return self.healthy and pong is not None and pong.step_seconds < _STEP_LIMIT_SECONDS

    def connect(self, sink: OutputSink) -> None:
        """Deliver every later output to ``sink``."""
        self._sink = sink

    def add(self, requests: Sequence[Request]) -> None:
        """Send requests to the engine.

        Raises:
            RequestError: 503 while loading, ending or dead; 429 when too many wait; 400 where there
                would never be room.
        """
        self.begin(requests)
        self._channel.send(AddRequests(list(requests)))
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    def begin(self, requests: Sequence[Request]) -> None:
        """Count requests as submitted, without sending them.

        Raises:
            RequestError: as ``add`` does.
        """
        if not self.healthy:
            raise RequestError(503, self._unavailable())
        sequences = sum(request.params.n for request in requests)
        if len(requests) > self._max_requests or sequences > self._max_sequences:
            raise RequestError(
                400,
                f"{len(requests)} prompts with {sequences} answers are more than this server ever "
                f"has room for: {self._max_requests} prompts (--max-waiting) and "
                f"{self._max_sequences} answers (with --max-num-seqs)",
            )
        # The engine refuses by the true length of its queue; this keeps a flood off the channel.
        if self._observer.num_sequences + sequences > self._max_sequences:
            raise RequestError(429, "too many requests are waiting; try again later")
        self._observer.submitted(requests)

    def end(self, requests: Sequence[Request], reasons: Sequence[str]) -> None:
        """Requests that were begun and never sent have ended."""
        for request, reason in zip(requests, reasons, strict=True):
            self._observer.ended(request.handle, -1, reason)

    def abort(self, handles: Sequence[int], choices: Sequence[int], stopped: bool = False) -> None:
        """Stop sequences; unknown ones and a dead engine are ignored."""
        for handle, choice in zip(handles, choices, strict=True):
            self._observer.ended(handle, choice, "stop" if stopped else "abort")
        if self._death is None:
            self._channel.send(AbortRequests(list(handles), list(choices), stopped))

    async def load_adapter(self, name: str, folder: str) -> int:
        """Load a LoRA adapter from a folder of this host; the number that requests name it by.

        Raises:
            RequestError: 400; it does not fit. 409; it is being loaded. 503 without an engine.
        """
        if not self.healthy:
            raise RequestError(503, self._unavailable())
        if name in self._loading:
            raise RequestError(409, f"lora_name {name!r} is being loaded", param="lora_name")
        future = self._loading[name] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(LoadAdapter(name, folder))
            loaded = await future
        finally:
            del self._loading[name]
        if loaded.error is not None:
            raise RequestError(400, f"lora_path: {loaded.error}", param="lora_path")
        return loaded.adapter

    async def profile(self, start: bool) -> str:
        """Start or stop a profile of the engine's steps; the path of its trace.

        Raises:
            RequestError: 400; not now. 409; the engine is still at the last one. 503 without it.
        """
        if not self.healthy:
            raise RequestError(503, self._unavailable())
        if self._profiling is not None:
            raise RequestError(409, "a profile is being started or written")
        self._profiling = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(Profile(start))
            profiled = await self._profiling
        finally:
            self._profiling = None
        if profiled.error is not None:
            raise RequestError(400, profiled.error)
        return profiled.path

    def unload_adapter(self, adapter: int) -> None:
        """Take no new request for an adapter; its last one still ends well."""
        if self._death is None:
            self._channel.send(UnloadAdapter(adapter))

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no sequence uses."""
        if self._death is None:
            self._channel.send(ResetPrefixCache())

    def fail_open(self, message: str) -> None:
        """End every open request with an error, and refuse what would follow from one."""
        self._ending = True
        self._observer.fail_all()
        if self._sink is not None:
            self._sink.fail(message)

    def _fail_waiting(self) -> None:
        """End what waits for an answer that is no output."""
        for waiting in (*self._loading.values(), self._profiling):
            if waiting is not None and not waiting.done():
                waiting.set_exception(RequestError(503, self._unavailable()))

    def _unavailable(self) -> str:
        if self._death is not None:
            return f"the engine is dead: {self._death}"
        return "the server is shutting down" if self._ending else "the model is loading"

    def _on_messages(self, messages: list[object]) -> None:
        for message in messages:
            if isinstance(message, OutputBatch):
                self._observer.delivered(message)
                if self._sink is not None:
                    self._sink.deliver(message)
            elif isinstance(message, EngineStats):
                self._stats = message
                self._observer.take_stats(message)
                self._stats_log.take(message)
            elif isinstance(message, EngineReady):
                self._ready = message
                self._metrics.engine_up.set(1)
                self._metrics.kv_capacity.set(message.num_kv_tokens)
                if not self._loaded.done():
                    self._loaded.set_result(message)
            elif isinstance(message, Profiled):
                if self._profiling is not None and not self._profiling.done():
                    self._profiling.set_result(message)
            elif isinstance(message, AdapterLoaded):
                if (waiting := self._loading.get(message.name)) and not waiting.done():
                    waiting.set_result(message)
            elif isinstance(message, EngineProgress):
                self._on_progress(message)
            elif isinstance(message, EngineDead):
                self._die(message.message)

    def _on_exit(self, reason: str) -> None:
        self._channel.drain()  # the engine's own last words come first
        self._die(reason)

    def _die(self, reason: str) -> None:
        if self._death is not None:
            return
        self._death = reason
        self._metrics.engine_up.set(0)
        self._stats = EngineStats()
        self._observer.take_stats(self._stats)
        self._process.kill()
        self._fail_waiting()
        if not self._loaded.done():
            self._loaded.set_exception(EngineFailed(reason))
        else:
            logger.error("the engine is dead: %s", reason)
            self.fail_open(self._unavailable())
        self._on_death()

    async def _watch(self) -> None:
        """Give up an engine that owes answers and shows no life."""
        while self._observer.num_open and self._death is None:
            await asyncio.sleep(_WATCH_SECONDS)
            pong = await self._process.ping(_SILENCE_SECONDS)
            if pong is None:
                self._die(f"no sign of life for {_SILENCE_SECONDS:g} seconds")
            elif pong.step_seconds > _STEP_LIMIT_SECONDS:
                self._die(f"one step takes more than {_STEP_LIMIT_SECONDS:g} seconds")
