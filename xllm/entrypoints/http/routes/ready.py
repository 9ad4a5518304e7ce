"""``GET`` and ``HEAD /ready``: the readiness probe."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import json_response, stack_of

router = APIRouter()


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> Response:
    """200 from the moment the first token can be made until draining begins; asks no engine."""
    is_ready = stack_of(request).accepting
    return json_response({"ready": is_ready}, 200 if is_ready else 503)
