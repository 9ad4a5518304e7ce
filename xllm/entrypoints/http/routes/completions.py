"""``POST /v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.completions import CompletionRequest

router = APIRouter()


@router.post("/v1/completions", openapi_extra=accepts(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continue prompts, whole or as a stream."""
    return await exchange(request, CompletionRequest, services_of(request).completions.handle)
