"""``POST /v1/load_lora_adapter`` and ``POST /v1/unload_lora_adapter`` (administration)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest

ADMIN = True
router = ApiRouter()


@router.post("/v1/load_lora_adapter", body=LoadAdapterRequest)
async def load_lora_adapter(request: Request) -> Response:
    """Load a LoRA adapter from a folder of the server's host."""
    return await exchange(request, LoadAdapterRequest, services_of(request).adapters.load)


@router.post("/v1/unload_lora_adapter", body=UnloadAdapterRequest)
async def unload_lora_adapter(request: Request) -> Response:
    """Serve a LoRA adapter no longer."""
    return await exchange(request, UnloadAdapterRequest, services_of(request).adapters.unload)
