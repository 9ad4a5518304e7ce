"""``POST /tokenize``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.tokenize import TokenizeRequest

router = ApiRouter()


@router.post("/tokenize", body=TokenizeRequest)
async def tokenize(request: Request) -> Response:
    """Token ids of a text or a conversation."""
    return await exchange(request, TokenizeRequest, services_of(request).tokenize.tokenize)
