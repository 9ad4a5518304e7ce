"""``POST /v1/score`` and ``/score``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.pooling import ScoreRequest

router = ApiRouter()


@router.post("/v1/score", body=ScoreRequest)
@router.post("/score", body=ScoreRequest)
async def score(request: Request) -> Response:
    """How well the texts of each pair fit."""
    return await exchange(request, ScoreRequest, services_of(request).pooling.score)
