"""``POST /v1/completions``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.completions import CompletionRequest

router = ApiRouter()


@router.post("/v1/completions", body=CompletionRequest)
async def completions(request: Request) -> Response:
    """Continue prompts, whole or as a stream."""
    return await exchange(request, CompletionRequest, services_of(request).completions.handle)
