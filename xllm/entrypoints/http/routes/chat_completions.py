"""``POST /v1/chat/completions``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.chat import ChatCompletionRequest

router = ApiRouter()


@router.post("/v1/chat/completions", body=ChatCompletionRequest)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await exchange(request, ChatCompletionRequest, services_of(request).chat.handle)
