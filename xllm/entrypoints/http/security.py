"""Who may come in and how much they may bring."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from xllm.frontend.protocol.errors import RequestError

# Routes that answer without a key: what a load balancer asks, and the pages' static files, which
# are the same for everybody and ask for the key themselves. Everything else is denied.
PROBE_PATHS = frozenset({"/health", "/ready", "/ping"})
PUBLIC_PATHS = PROBE_PATHS | {"/", "/dashboard", "/web/{name:path}"}
MAX_HEADER_BYTES = 64 << 10
# A connection that does not complete a request's headers within this time is closed.
HEADER_TIMEOUT_SECONDS = 60.0
# Longest pause between two pieces of a request's body.
BODY_TIMEOUT_SECONDS = 30.0


class ApiKeys:
    """The accepted keys, as digests, compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def accepts(self, authorization: str | None) -> bool:
        """Whether an ``Authorization`` header opens the door; always, when no key is set."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        digest = hashlib.sha256(key.strip().encode(errors="surrogateescape")).digest()
        # No early exit: the time must not tell which key matched.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def require_key(request: Request) -> None:
    """Dependency of every route: the matched route is public, or the key is right.

    Raises:
        RequestError: 401.
    """
    if request.scope["route"].path in PUBLIC_PATHS:
        return
    authorization = request.headers.get("authorization")
    key = request.headers.get("x-api-key")  # how Anthropic's clients send it
    if authorization is None and key is not None:
        authorization = f"Bearer {key}"
    if not request.app.state.api_keys.accepts(authorization):
        raise RequestError(401, "a valid API key is needed: Authorization: Bearer KEY")


async def read_body(
    request: Request, max_bytes: int, timeout_seconds: float | None = None
) -> bytes:
    """The request body, refused as soon as it is known to be too large.

    Args:
        request: whose body nobody has read.
        max_bytes: its largest size.
        timeout_seconds: for all of it, however steadily its pieces come; None for no limit.

    Raises:
        RequestError: 413 above ``max_bytes``, 408 when the client stalls or takes too long.
    """
    too_large = RequestError(413, f"the request body is larger than {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                # Not wait_for: before Python 3.12 it returns what has just come in place of being
                # cancelled, and the outer timeout would never end this.
                async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                    message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RequestError(408, "the request body did not arrive in time") from None


class GuardedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP parser with a bound on header bytes and on the time to send them."""

    _in_headers = True
    _between_requests = True
    _num_begun = 0  # requests that began in the piece being parsed
    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request's headers."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse a request whose headers have no end."""
        alone = self._between_requests
        self._num_begun = 0
        super().data_received(data)
        if self._num_begun > alone or not self._in_headers:
            # Where a request's headers begin behind another request, this piece is not counted:
            # how much of it is theirs is unknown, and the next one tells.
            self._header_bytes = 0
        else:
            self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(
                STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the envelope of every other error."""
        body = msgspec.json.encode(RequestError(400, msg).body())
        self.transport.write(
            STATUS_LINE[400]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
        self.transport.close()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_headers = True
        self._between_requests = False
        self._num_begun += 1
        if self._header_timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        """The request has begun in earnest."""
        self._in_headers = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request's last byte."""
        super().on_message_complete()
        self._between_requests = True

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def cors_options(origins: Sequence[str]) -> dict[str, Any]:
    """Arguments of the CORS middleware: only the origins named, no cookies."""
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "DELETE"],
        "allow_headers": ["Authorization", "Content-Type", "X-Api-Key", "Anthropic-Version"],
        "max_age": 600,
    }
