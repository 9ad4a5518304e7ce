"""``POST /v1/chat/completions/render`` and ``POST /v1/completions/render``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest

router = ApiRouter()


@router.post("/v1/chat/completions/render", body=ChatCompletionRequest)
async def render_chat(request: Request) -> Response:
    """Text and token ids that a conversation becomes; nothing is generated."""
    return await exchange(request, ChatCompletionRequest, services_of(request).render.chat)


@router.post("/v1/completions/render", body=CompletionRequest)
async def render_completions(request: Request) -> Response:
    """Text and token ids of prompts; nothing is generated."""
    return await exchange(request, CompletionRequest, services_of(request).render.completion)
