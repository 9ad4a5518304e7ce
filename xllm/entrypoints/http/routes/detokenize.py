"""``POST /detokenize``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.tokenize import DetokenizeRequest

router = ApiRouter()


@router.post("/detokenize", body=DetokenizeRequest)
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    return await exchange(request, DetokenizeRequest, services_of(request).tokenize.detokenize)
