"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.messages import CountTokensRequest, MessagesRequest

router = ApiRouter()


@router.post("/v1/messages", body=MessagesRequest)
async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream, in Anthropic's shape."""
    return await exchange(request, MessagesRequest, services_of(request).messages.handle)


@router.post("/v1/messages/count_tokens", body=CountTokensRequest)
async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation has."""
    return await exchange(request, CountTokensRequest, services_of(request).messages.count_tokens)
