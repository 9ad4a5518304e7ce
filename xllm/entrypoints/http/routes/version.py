"""``GET /version``."""

from __future__ import annotations

from fastapi import APIRouter, Response

from xllm.entrypoints.http.exchange import json_response
from xllm.version import __version__

router = APIRouter()


@router.get("/version")
async def version() -> Response:
    """The version of xLLM."""
    return json_response({"version": __version__})
