"""``POST /tokenize``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.tokenize import TokenizeRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=accepts(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Token ids of a text or a conversation."""
    return await exchange(request, TokenizeRequest, services_of(request).tokenize.tokenize)
