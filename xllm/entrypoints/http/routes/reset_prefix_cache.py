"""``POST /reset_prefix_cache`` (administration)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, stack_of
from xllm.entrypoints.http.router import ApiRouter

ADMIN = True
router = ApiRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached block that no sequence uses."""
    stack_of(request).reset_prefix_cache()
    return json_response({})
