"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.messages import CountTokensRequest, MessagesRequest

router = APIRouter()


@router.post("/v1/messages", openapi_extra=accepts(MessagesRequest))
async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream, in Anthropic's shape."""
    return await exchange(request, MessagesRequest, services_of(request).messages.handle)


@router.post("/v1/messages/count_tokens", openapi_extra=accepts(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation has."""
    return await exchange(request, CountTokensRequest, services_of(request).messages.count_tokens)
