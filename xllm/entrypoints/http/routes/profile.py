"""``POST /start_profile`` and ``/stop_profile`` (administration): a trace of the engine's steps."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import json_response, stack_of

ADMIN = True
router = APIRouter()


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Begin; 400 without ``--profiler-dir`` or when a profile is being taken."""
    return json_response({"trace": await stack_of(request).profile(True)})


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """End and write the trace, which Perfetto and ``chrome://tracing`` read; its path."""
    return json_response({"trace": await stack_of(request).profile(False)})
