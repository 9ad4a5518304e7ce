"""``GET /``, ``/dashboard`` and ``/web/...``: the chat page, the dashboard and their files."""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.responses import Response

from xllm.core.config import ServerConfig
from xllm.entrypoints.http.bundle import Bundle
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.errors import RequestError

router = ApiRouter(documented=False)  # pages are no API


def served(config: ServerConfig) -> bool:
    """Whether these routes exist."""
    return config.enable_web


@functools.cache
def _bundle() -> Bundle:
    return Bundle()


@router.get("/", head=True)
async def chat_page(request: Request) -> Response:
    """The chat page."""
    return _bundle().respond(request, "chat.html")


@router.get("/dashboard", head=True)
async def dashboard(request: Request) -> Response:
    """The live dashboard."""
    return _bundle().respond(request, "dashboard.html")


@router.get("/web/{name:path}", head=True)
async def web_file(request: Request) -> Response:
    """A script, style or image of the pages.

    Raises:
        RequestError: 404.
    """
    name = request.path_params["name"]
    if name not in _bundle():
        raise RequestError(404, f"no such file: /web/{name}")
    return _bundle().respond(request, name)
