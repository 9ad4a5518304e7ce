"""``POST /pooling``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.pooling import PoolingRequest

router = ApiRouter()


@router.post("/pooling", body=PoolingRequest)
async def pooling(request: Request) -> Response:
    """What the model pools, per input."""
    return await exchange(request, PoolingRequest, services_of(request).pooling.pool)
