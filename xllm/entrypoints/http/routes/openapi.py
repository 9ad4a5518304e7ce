"""``GET /openapi.json``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response
from xllm.entrypoints.http.openapi import openapi_document
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Every route and what it takes, as an OpenAPI document."""
    return json_response(openapi_document(request.app.state.routes))
