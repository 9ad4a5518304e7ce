"""``POST /v1/rerank``, ``/v2/rerank`` and ``/rerank``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.pooling import RerankRequest

router = ApiRouter()


@router.post("/v1/rerank", body=RerankRequest)
@router.post("/v2/rerank", body=RerankRequest)
@router.post("/rerank", body=RerankRequest)
async def rerank(request: Request) -> Response:
    """Documents by their relevance to a query."""
    return await exchange(request, RerankRequest, services_of(request).pooling.rerank)
