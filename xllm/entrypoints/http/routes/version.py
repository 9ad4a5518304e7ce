"""``GET /version``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response
from xllm.entrypoints.http.router import ApiRouter
from xllm.version import __version__

router = ApiRouter()


@router.get("/version")
async def version(request: Request) -> Response:
    """The version of xLLM."""
    return json_response({"version": __version__})
