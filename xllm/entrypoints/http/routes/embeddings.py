"""``POST /v1/embeddings``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.pooling import EmbeddingRequest

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=accepts(EmbeddingRequest))
async def embeddings(request: Request) -> Response:
    """One vector per input."""
    return await exchange(request, EmbeddingRequest, services_of(request).pooling.embed)
