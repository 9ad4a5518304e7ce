"""``GET /v1/models`` and ``/v1/models/{name}``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import json_response, services_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Every served model."""
    return json_response(services_of(request).models.list())


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One served model."""
    return json_response(services_of(request).models.get(name))
