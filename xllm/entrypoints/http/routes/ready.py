"""``GET`` and ``HEAD /ready``: the readiness probe."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, stack_of
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/ready", head=True)
async def ready(request: Request) -> Response:
    """200 from the moment the first token can be made until draining begins; asks no engine."""
    is_ready = stack_of(request).accepting
    return json_response({"ready": is_ready}, 200 if is_ready else 503)
