"""``POST /v1/score`` and ``/score``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.pooling import ScoreRequest

router = APIRouter()


@router.post("/v1/score", openapi_extra=accepts(ScoreRequest))
@router.post("/score", openapi_extra=accepts(ScoreRequest))
async def score(request: Request) -> Response:
    """How well the texts of each pair fit."""
    return await exchange(request, ScoreRequest, services_of(request).pooling.score)
