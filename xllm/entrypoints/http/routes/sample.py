"""``POST /v1/sample``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.sample import SampleRequest

router = APIRouter()


@router.post("/v1/sample", openapi_extra=accepts(SampleRequest))
async def sample(request: Request) -> Response:
    """The model's distribution at chosen places of a prompt."""
    return await exchange(request, SampleRequest, services_of(request).sample.sample)
