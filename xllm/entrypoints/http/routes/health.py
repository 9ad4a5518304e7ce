"""``GET`` and ``HEAD /health``: may this server be sent traffic, and does its engine live?"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, stack_of
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/health", head=True)
async def health(request: Request) -> Response:
    """200 when a request would be served; 503 while loading or draining and with a dead engine."""
    state = await stack_of(request).health()
    return json_response({"status": state}, 200 if state == "ok" else 503)
