"""``GET /v1/models`` and ``/v1/models/{name}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, services_of
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Every served model."""
    return json_response(services_of(request).models.list())


@router.get("/v1/models/{name:path}")
async def get_model(request: Request) -> Response:
    """One served model."""
    name = request.path_params["name"]
    return json_response(services_of(request).models.get(name))
