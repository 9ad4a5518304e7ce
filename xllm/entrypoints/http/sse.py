"""Server-sent events: the hot path of a streaming answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from xllm.entrypoints.http.activity import RAW_SEND
from xllm.entrypoints.http.connection import WRITE_BODY
from xllm.entrypoints.http.departure import UntilDisconnect
from xllm.entrypoints.http.dialects import Dialect, dialect_of
from xllm.entrypoints.http.errors import request_error

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not hold events back
]


class ChunkSource(Protocol):
    """Lists of message structs, as ``services.ChunkStream`` has them."""

    def __aiter__(self) -> ChunkSource: ...

    async def __anext__(self) -> list[Any]:
        """The next chunks, waiting for some."""

    async def relay(self, write: Callable[[list[Any]], bool]) -> None:
        """Have ``write`` called with chunks until it, or the source, wants to be asked again."""

    async def aclose(self) -> None:
        """Stop what makes them. Idempotent."""


class SseResponse(Response):
    """Streams lists of chunks as events, in the dialect of the route.

    The request has a task of its own and its stream's queue is its own, so a client that does
    not read stalls this answer alone; what piles up meanwhile leaves in one write. While a client
    keeps up, the task sleeps and events are written by who has them. An error after the headers
    becomes one error event, then the stream closes without its usual end.

    Args:
        chunks: closed when the client goes away.
        timeout_seconds: longest life of the stream; None for no limit.
    """

    def __init__(
        self,
        chunks: ChunkSource,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        self._timeout_seconds = timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the end, the timeout or the client's departure."""
        with contextlib.suppress(ClientDisconnect):
            async with UntilDisconnect(receive):
                await self._stream(dialect_of(scope), send, scope)

    async def _stream(self, dialect: Dialect, send_start: Send, scope: Scope) -> None:
        send: Send = scope[RAW_SEND]
        write = _writer(dialect, scope)
        tail = dialect.end
        try:
            # Middlewares see the headers; what follows is nobody's but the client's.
            await send_start({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async with asyncio.timeout(self._timeout_seconds):
                async for chunks in self._chunks:
                    body = dialect.events(chunks)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    if write is not None:
                        await self._chunks.relay(write)
        except Exception as error:
            tail = dialect.events([dialect.event_error(request_error(error))])
        finally:
            await self._chunks.aclose()
        await send({"type": "http.response.body", "body": tail})


def _writer(dialect: Dialect, scope: Scope) -> Callable[[list[Any]], bool] | None:
    """Writes chunks to the connection at once, where it can; False once its client is behind."""
    write_body = scope.get(WRITE_BODY)
    if write_body is None:
        return None

    def write(chunks: list[Any]) -> bool:
        keeps_up: bool = write_body(dialect.events(chunks))
        return keeps_up

    return write
