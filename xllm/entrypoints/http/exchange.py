"""One API exchange: body in, one call into a service, answer or stream out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from xllm.core.config import ServerConfig
from xllm.entrypoints.http.departure import UntilDisconnect
from xllm.entrypoints.http.security import read_body
from xllm.entrypoints.http.sse import SseResponse
from xllm.frontend.protocol.decode import decode_request
from xllm.frontend.protocol.errors import RequestError

if TYPE_CHECKING:
    from xllm.assembly.families.llm import Services, ServingStack

T = TypeVar("T")


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON answer of any msgspec-encodable value."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def stack_of(request: Request) -> ServingStack:
    """The serving stack behind the application."""
    stack: ServingStack = request.app.state.stack
    return stack


def services_of(request: Request) -> Services:
    """The services, once the model is loaded.

    Raises:
        RequestError: 503 while it loads.
    """
    services = stack_of(request).services
    if services is None:
        raise RequestError(503, "the model is loading")
    return services


async def exchange(
    request: Request,
    schema: type[T],
    handle: Callable[[T], Awaitable[Any]],
) -> Response:
    """Decode the body, call the service, send its answer or stream.

    A client that goes away cancels the service's work, which aborts it in the engine.

    Raises:
        RequestError: what the service raises; 400, 413 for the body; 503 from a draining server.
        TimeoutError: the answer took longer than the server allows.
    """
    if stack_of(request).draining:
        raise RequestError(503, "the server is shutting down")
    config: ServerConfig = request.app.state.config
    timeout = config.request_timeout or None
    body = decode_request(schema, await read_body(request, config.max_body_bytes, timeout))
    async with UntilDisconnect(request.receive), asyncio.timeout(timeout):
        answer = await handle(body)
    if hasattr(answer, "__aiter__"):
        return SseResponse(answer, timeout_seconds=timeout)
    return json_response(answer)
