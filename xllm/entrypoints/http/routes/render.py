"""``POST /v1/chat/completions/render`` and ``POST /v1/completions/render``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest

router = APIRouter()


@router.post("/v1/chat/completions/render", openapi_extra=accepts(ChatCompletionRequest))
async def render_chat(request: Request) -> Response:
    """Text and token ids that a conversation becomes; nothing is generated."""
    return await exchange(request, ChatCompletionRequest, services_of(request).render.chat)


@router.post("/v1/completions/render", openapi_extra=accepts(CompletionRequest))
async def render_completions(request: Request) -> Response:
    """Text and token ids of prompts; nothing is generated."""
    return await exchange(request, CompletionRequest, services_of(request).render.completion)
