"""``/v1/responses``: make, fetch, forget, cancel; and what a response was asked with."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from xllm.entrypoints.http.exchange import exchange, json_response, services_of
from xllm.entrypoints.http.router import ApiRouter
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.responses import ResponsesRequest

router = ApiRouter()


@router.post("/v1/responses", body=ResponsesRequest)
async def create(request: Request) -> Response:
    """Make a response, whole, as a stream or in the background."""
    return await exchange(request, ResponsesRequest, services_of(request).responses.handle)


@router.get("/v1/responses/{response_id}")
async def retrieve(request: Request) -> Response:
    """A response that is kept."""
    response_id = request.path_params["response_id"]
    if request.query_params.get("stream") == "true":
        raise RequestError.bad_field("stream", "is possible only while a response is made")
    return json_response(services_of(request).responses.get(response_id))


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request) -> Response:
    """Forget a response."""
    response_id = request.path_params["response_id"]
    return json_response(services_of(request).responses.delete(response_id))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request) -> Response:
    """Stop making a response in the background."""
    response_id = request.path_params["response_id"]
    return json_response(await services_of(request).responses.cancel(response_id))


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request) -> Response:
    """What a response was asked with, page by page."""
    response_id = request.path_params["response_id"]
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
