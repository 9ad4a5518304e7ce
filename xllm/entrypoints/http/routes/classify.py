"""``POST /v1/classify`` and ``/classify``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.pooling import ClassificationRequest

router = ApiRouter()


@router.post("/v1/classify", body=ClassificationRequest)
@router.post("/classify", body=ClassificationRequest)
async def classify(request: Request) -> Response:
    """The label of each input."""
    return await exchange(request, ClassificationRequest, services_of(request).pooling.classify)
