"""``POST /v1/classify`` and ``/classify``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.pooling import ClassificationRequest

router = APIRouter()


@router.post("/v1/classify", openapi_extra=accepts(ClassificationRequest))
@router.post("/classify", openapi_extra=accepts(ClassificationRequest))
async def classify(request: Request) -> Response:
    """The label of each input."""
    return await exchange(request, ClassificationRequest, services_of(request).pooling.classify)
