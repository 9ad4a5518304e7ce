"""``/v1/responses``: make, fetch, forget, cancel; and what a response was asked with."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from xllm.entrypoints.http.exchange import exchange, json_response, services_of
from xllm.entrypoints.http.openapi import accepts
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.responses import ResponsesRequest

router = APIRouter()


@router.post("/v1/responses", openapi_extra=accepts(ResponsesRequest))
async def create(request: Request) -> Response:
    """Make a response, whole, as a stream or in the background."""
    return await exchange(request, ResponsesRequest, services_of(request).responses.handle)


@router.get("/v1/responses/{response_id}")
async def retrieve(request: Request, response_id: str) -> Response:
    """A response that is kept."""
    if request.query_params.get("stream") == "true":
        raise RequestError.bad_field("stream", "is possible only while a response is made")
    return json_response(services_of(request).responses.get(response_id))


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request, response_id: str) -> Response:
    """Forget a response."""
    return json_response(services_of(request).responses.delete(response_id))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """Stop making a response in the background."""
    return json_response(await services_of(request).responses.cancel(response_id))


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> Response:
    """What a response was asked with, page by page."""
    query = request.query_params
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10):
        raise RequestError.bad_field("limit", "must be a positive number")
    found = services_of(request).responses.input_items(
        response_id,
        limit=int(limit),
        order=query.get("order", "desc"),
        after=query.get("after", ""),
    )
    return json_response(found)
