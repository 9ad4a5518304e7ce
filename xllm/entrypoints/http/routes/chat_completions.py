"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.chat import ChatCompletionRequest

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=accepts(ChatCompletionRequest))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await exchange(request, ChatCompletionRequest, services_of(request).chat.handle)
