"""``GET /metrics``: the Prometheus page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import stack_of
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Every metric of the catalogue in the Prometheus text format."""
    return Response(stack_of(request).metrics_page(), media_type="text/plain; version=0.0.4")
