"""``GET /openapi.json``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import json_response
from xllm.entrypoints.http.openapi import openapi_document

router = APIRouter()


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Every route and what it takes, as an OpenAPI document."""
    return json_response(openapi_document(request.app.state.routes))
