"""``POST /reset_prefix_cache`` (administration)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import json_response, stack_of

ADMIN = True
router = APIRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached block that no sequence uses."""
    stack_of(request).reset_prefix_cache()
    return json_response({})
