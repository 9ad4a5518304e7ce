"""Notes on whose behalf a request's tasks run, for traces."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from xllm.core.observability.tracing import CALLER, Caller

_HEADERS = (b"traceparent", b"tracestate")


class CallerMiddleware:
    """ASGI middleware, there only while traces are on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request's tasks inherit its path and W3C trace context."""
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _HEADERS
        }
        token = CALLER.set(Caller(scope["path"], headers))
        try:
            await self._app(scope, receive, send)
        finally:
            CALLER.reset(token)
