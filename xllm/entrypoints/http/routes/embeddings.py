"""``POST /v1/embeddings``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.pooling import EmbeddingRequest

router = ApiRouter()


@router.post("/v1/embeddings", body=EmbeddingRequest)
async def embeddings(request: Request) -> Response:
    """One vector per input."""
    return await exchange(request, EmbeddingRequest, services_of(request).pooling.embed)
