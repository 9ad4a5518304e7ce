"""``GET /metrics``: the Prometheus page."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import stack_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Every metric of the catalogue in the Prometheus text format."""
    return Response(stack_of(request).metrics_page(), media_type="text/plain; version=0.0.4")
