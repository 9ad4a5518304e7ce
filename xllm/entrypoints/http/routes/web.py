"""``GET /``, ``/dashboard`` and ``/web/...``: the chat page, the dashboard and their files."""

from __future__ import annotations

import functools

from fastapi import APIRouter, Request, Response

from xllm.core.config import ServerConfig
from xllm.entrypoints.http.bundle import Bundle
from xllm.frontend.protocol.errors import RequestError

router = APIRouter(include_in_schema=False)  # pages are no API


def served(config: ServerConfig) -> bool:
    """Whether these routes exist."""
    return config.enable_web


@functools.cache
def _bundle() -> Bundle:
    return Bundle()


@router.api_route("/", methods=["GET", "HEAD"])
async def chat_page(request: Request) -> Response:
    """The chat page."""
    return _bundle().respond(request, "chat.html")


@router.api_route("/dashboard", methods=["GET", "HEAD"])
async def dashboard(request: Request) -> Response:
    """The live dashboard."""
    return _bundle().respond(request, "dashboard.html")


@router.api_route("/web/{name:path}", methods=["GET", "HEAD"])
async def web_file(request: Request, name: str) -> Response:
    """A script, style or image of the pages.

    Raises:
        RequestError: 404.
    """
    if name not in _bundle():
        raise RequestError(404, f"no such file: /web/{name}")
    return _bundle().respond(request, name)
