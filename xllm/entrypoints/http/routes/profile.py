"""``POST /start_profile`` and ``/stop_profile`` (administration): a trace of the engine's steps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, stack_of
from xllm.entrypoints.http.router import ApiRouter

ADMIN = True
router = ApiRouter()


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Begin; 400 without ``--profiler-dir`` or when a profile is being taken."""
    return json_response({"trace": await stack_of(request).profile(True)})


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """End and write the trace, which Perfetto and ``chrome://tracing`` read; its path."""
    return json_response({"trace": await stack_of(request).profile(False)})
