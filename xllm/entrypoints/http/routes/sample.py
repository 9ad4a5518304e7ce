"""``POST /v1/sample``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.sample import SampleRequest

router = ApiRouter()


@router.post("/v1/sample", body=SampleRequest)
async def sample(request: Request) -> Response:
    """The model's distribution at chosen places of a prompt."""
    return await exchange(request, SampleRequest, services_of(request).sample.sample)
