"""LoRA adapters of a running server."""

from __future__ import annotations

import asyncio
from typing import Protocol

from xllm.core.observability.logging import get_logger
from xllm.frontend.intake.served import Adapter, ServedModels
from xllm.frontend.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest

logger = get_logger(__name__)


class AdapterEngine(Protocol):
    """The part of an engine that knows adapters."""

    async def load_adapter(self, name: str, folder: str) -> int:
        """Load one; the number that requests name it by.

        Raises:
            RequestError: it does not fit, or there is no engine.
        """
        ...

    def unload_adapter(self, adapter: int) -> None:
        """Take no new request for an adapter; its last one still ends well."""
        ...


class AdapterService:
    """Loads and unloads adapters, and gives them their names in the API."""

    def __init__(self, engine: AdapterEngine, served: ServedModels) -> None:
        self._engine = engine
        self._served = served

    async def load(self, body: LoadAdapterRequest) -> dict[str, str]:
        """Load an adapter; once this has returned, requests may name it.

        A client that goes away meanwhile changes nothing: the adapter is served, so that whoever
        looks finds it and can unload it.

        Raises:
            RequestError: the name is taken, or the folder is no adapter of this model.
        """
        self._served.check_new(body.lora_name)
        loading = asyncio.create_task(self._load(body))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_log_failure)  # nobody else will hear of one
            raise
        return {"status": "success"}

    async def _load(self, body: LoadAdapterRequest) -> None:
        number = await self._engine.load_adapter(body.lora_name, body.lora_path)
        self._served.add(body.lora_name, Adapter(number, body.lora_path))

    async def unload(self, body: UnloadAdapterRequest) -> dict[str, str]:
        """Serve an adapter no longer; requests that run with it end well.

        Raises:
            RequestError: 404; there is none of that name.
        """
        self._engine.unload_adapter(self._served.remove(body.lora_name).number)
        return {"status": "success"}


def _log_failure(loading: asyncio.Task[None]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        logger.warning("an adapter was not loaded: %s", error)
