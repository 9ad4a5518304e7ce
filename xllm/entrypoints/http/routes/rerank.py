"""``POST /v1/rerank``, ``/v2/rerank`` and ``/rerank``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.pooling import RerankRequest

router = APIRouter()


@router.post("/v1/rerank", openapi_extra=accepts(RerankRequest))
@router.post("/v2/rerank", openapi_extra=accepts(RerankRequest))
@router.post("/rerank", openapi_extra=accepts(RerankRequest))
async def rerank(request: Request) -> Response:
    """Documents by their relevance to a query."""
    return await exchange(request, RerankRequest, services_of(request).pooling.rerank)
