"""``POST /detokenize``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.tokenize import DetokenizeRequest

router = APIRouter()


@router.post("/detokenize", openapi_extra=accepts(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    return await exchange(request, DetokenizeRequest, services_of(request).tokenize.detokenize)
