"""``POST /pooling``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.pooling import PoolingRequest

router = APIRouter()


@router.post("/pooling", openapi_extra=accepts(PoolingRequest))
async def pooling(request: Request) -> Response:
    """What the model pools, per input."""
    return await exchange(request, PoolingRequest, services_of(request).pooling.pool)
