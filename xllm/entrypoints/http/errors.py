"""Every error leaves in the envelope of its API, whoever raised it."""

from __future__ import annotations

import http

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xllm.core.observability.logging import get_logger
from xllm.entrypoints.http.dialects import OPENAI, Dialect, dialect_of
from xllm.frontend.protocol.errors import RequestError

logger = get_logger(__name__)

# Headers that go with a status; Retry-After says in seconds when to try again.
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},  # the rest of the body may come at any time
    415: {"Accept-Encoding": "identity"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "5"},
}


def request_error(error: Exception) -> RequestError:
    """What a client may know of any exception; unexpected ones are logged and hidden."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TimeoutError):
        return RequestError(504, "the request took longer than --request-timeout allows")
    if isinstance(error, RecursionError):  # schemas and conversations are walked recursively
        return RequestError(400, "the request is nested too deeply")
    logger.error("a request failed unexpectedly", exc_info=error)
    return RequestError(500, "internal error; the server log has the details")


def error_response(error: Exception, dialect: Dialect = OPENAI) -> Response:
    """The error answer of any exception."""
    known = request_error(error)
    return Response(
        msgspec.json.encode(dialect.error(known)),
        known.status,
        _HEADERS.get(known.status),
        media_type="application/json",
    )


def install_handlers(app: Starlette) -> None:
    """Give the framework's own errors (404, 405, ...) the envelope too."""

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = error.detail
        if message == http.HTTPStatus(error.status_code).phrase:
            message = f"{message}: {request.method} {request.url.path}"
            if error.status_code == http.HTTPStatus.NOT_FOUND:
                message += _meant(request)
        known = RequestError(error.status_code, message)
        response = error_response(known, dialect_of(request.scope))
        response.headers.update(error.headers or {})
        return response

    async def on_request_error(request: Request, error: Exception) -> Response:
        return error_response(error, dialect_of(request.scope))

    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(TimeoutError, on_request_error)


def _meant(request: Request) -> str:
    """A question for the route, where a base URL lacks ``/v1`` or has one too many."""
    path = request.url.path
    meant = path.removeprefix("/v1") if path.startswith("/v1/v1/") else "/v1" + path
    served = any(getattr(route, "path", None) == meant for route in request.app.state.routes)
    return f" (did you mean {meant}?)" if served else ""


class ErrorBoundary:
    """ASGI middleware: an unforeseen exception becomes a 500 envelope and one log record."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application inside the boundary."""
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return
        except Exception as error:
            response = error_response(error, dialect_of(scope))
            if not started:
                await response(scope, receive, send)
