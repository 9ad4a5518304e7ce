"""``GET /load``: what a router needs to choose among servers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import json_response, stack_of
from xllm.entrypoints.http.router import ApiRouter

router = ApiRouter()


@router.get("/load")
async def load(request: Request) -> Response:
    """Requests open on this server, and the engine's queues and KV use."""
    stack = stack_of(request)
    stats = stack.stats
    return json_response(
        {
            "server_load": stack.num_open,
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "kv_cache_usage": stats.kv_usage,
        }
    )
