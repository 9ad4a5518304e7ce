"""The language-model family: engine process, text services and what connects them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable

from xllm.assembly.process.engine_client import ProcessEngineClient
from xllm.assembly.process.spawn import SpawnedEngine
from xllm.assembly.resolve import resolve_files
from xllm.assembly.text import ModelText, load_text
from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress, EngineReady, EngineStats
from xllm.core.observability.memory import resident_bytes
from xllm.core.observability.metrics import ServerMetrics, exposition
from xllm.frontend.intake import RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.adapters import LoadAdapterRequest
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.services import (
    AdapterService,
    BeamService,
    ChatService,
    CompletionService,
    Conversations,
    MessageService,
    ModelService,
    OutputDispatcher,
    PoolingService,
    RenderService,
    ResponseService,
    ResponseStore,
    SampleService,
    TokenizeService,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """One service per API family, and the two parts that they share."""

    chat: ChatService
    completions: CompletionService
    models: ModelService
    tokenize: TokenizeService
    render: RenderService
    messages: MessageService
    responses: ResponseService
    adapters: AdapterService
    pooling: PoolingService
    sample: SampleService
    factory: RequestFactory
    dispatcher: OutputDispatcher


def build(
    config: XllmConfig,
    on_progress: Callable[[EngineProgress], None],
    spawned: SpawnedEngine | None = None,
) -> ServingStack:
    """A serving stack for a language model; see ``assembly.registry.build``."""
    return ServingStack(config, on_progress, spawned)


class ServingStack:
    """Everything behind the doors of one server, and its life: start, drain, close.

    ``services`` is None until ``start`` has returned. ``died`` is set when the engine has ended
    unasked; its open requests have then failed already. ``draining`` is set by ``drain``.

    Args:
        config: what was asked for.
        on_progress: told of every phase of the start-up, on the event loop or a thread of it.
        spawned: the engine process, if it runs already.
    """

    def __init__(
        self,
        config: XllmConfig,
        on_progress: Callable[[EngineProgress], None],
        spawned: SpawnedEngine | None = None,
    ) -> None:
        self._config = config
        self._spawned = spawned
        self._on_progress = on_progress
        self._metrics = ServerMetrics()
        self._page: Callable[[], bytes] | None = None
        self._client: ProcessEngineClient | None = None
        self.draining = False
        self.services: Services | None = None
        self.died = asyncio.Event()

    async def start(self) -> EngineReady:
        """Resolve the model's files, start the engine process, build the services.

        Raises:
            ValueError: the model does not exist or does not fit the configuration.
            EngineFailed: the engine could not start.
        """
        client = ProcessEngineClient(
            self._config, self._metrics, self._on_progress, self.died.set, self._spawned
        )
        self._client = client
        # Libraries load there while files are looked for here; then weights there, text here.
        await client.spawn()
        self._on_progress(EngineProgress("resolve model"))
        files = await asyncio.to_thread(resolve_files, self._config, self._on_progress)
        ready, text = await asyncio.gather(
            client.load(files), asyncio.to_thread(load_text, self._config, files)
        )
        services = self._build_services(text, client, ready)
        for name, folder in self._config.lora.modules.items():
            try:
                await services.adapters.load(LoadAdapterRequest(lora_name=name, lora_path=folder))
            except RequestError as error:
                raise ValueError(f"--lora-modules {name}={folder}: {error.message}") from None
        self.services = services
        return ready

    async def close(self) -> None:
        """End the engine process; open requests end with it."""
        if self._client is not None:
            await self._client.close()

    def kill(self) -> None:
        """End the engine process at once."""
        if self._client is not None:
            self._client.kill()

    def drain(self) -> None:
        """Let the doors refuse what comes from now on.

        What they have accepted goes on, and may ask the engine again (a beam search does so for
        every token): so neither the engine nor its client knows of a drain.
        """
        self.draining = True

    @property
    def num_background(self) -> int:
        """Answers in the making that no open connection waits for."""
        return self.services.responses.num_background if self.services is not None else 0

    async def wait_background(self, timeout_seconds: float) -> bool:
        """Whether there are none of those within the time."""
        if self.services is None:
            return True
        return await self.services.responses.wait_background(timeout_seconds)

    def fail_open(self, message: str) -> None:
        """End every open request with an error, and refuse what would follow from one."""
        if self._client is not None:
            self._client.fail_open(message)

    @property
    def accepting(self) -> bool:
        """Whether a request would be served now, as far as is known without asking the engine."""
        if self.draining or self.services is None or self._client is None:
            return False
        return self._client.healthy

    async def health(self) -> str:
        """``ok``, or why no request would be served: ``loading``, ``draining`` or ``dead``."""
        if self.died.is_set():
            return "dead"
        if self.draining:
            return "draining"
        if self.services is None or self._client is None:
            return "loading"
        return "ok" if await self._client.check_health() else "dead"

    @property
    def stats(self) -> EngineStats:
        """The engine's latest gauges and counters."""
        return self._client.stats if self._client is not None else EngineStats()

    @property
    def num_open(self) -> int:
        """Requests that the engine has not finished."""
        return self._client.num_open if self._client is not None else 0

    def metrics_page(self) -> bytes:
        """The Prometheus text page."""
        pid = self._client.engine_pid if self._client is not None else None
        self._metrics.server_memory.set(resident_bytes(os.getpid()))
        self._metrics.engine_memory.set(resident_bytes(pid))
        if self._page is None:
            self._page = exposition(
                self._metrics,
                self._config.model.api_name,
                self._config.observability.compat_metrics,
            )
        return self._page()

    async def profile(self, start: bool) -> str:
        """Start or stop a profile of the engine's steps; the path of its trace.

        Raises:
            RequestError: 400, 409, 503; see ``ProcessEngineClient.profile``.
        """
        if self._client is None:
            raise RequestError(503, "the model is loading")
        return await self._client.profile(start)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no sequence uses."""
        if self._client is not None:
            self._client.reset_prefix_cache()

    def _build_services(
        self, text: ModelText, client: ProcessEngineClient, ready: EngineReady
    ) -> Services:
        served = ServedModels(self._config.model.api_name)
        factory = text.request_factory(self._config, ready, served)
        dispatcher = OutputDispatcher(client, text.output_processor())
        beams = BeamService(factory, dispatcher, served)
        conversations = Conversations(factory, dispatcher, served)
        render = RenderService(factory, served)
        server = self._config.server
        store = ResponseStore(server.response_store_bytes, server.response_store_ttl)
        return Services(
            chat=ChatService(conversations, beams),
            completions=CompletionService(factory, dispatcher, served, beams),
            models=ModelService(
                served, ready.max_model_len, factory.task, self._config.model.model
            ),
            tokenize=TokenizeService(factory, served),
            render=render,
            messages=MessageService(conversations, render),
            responses=ResponseService(conversations, store, server.max_background_responses),
            adapters=AdapterService(client, served),
            pooling=PoolingService(text.pooling_factory(self._config, ready), dispatcher, served),
            sample=SampleService(factory, dispatcher, served),
            factory=factory,
            dispatcher=dispatcher,
        )
