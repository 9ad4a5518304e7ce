"""HTTP on one connection: what a client may send, and how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from xllm.frontend.protocol.errors import RequestError

MAX_HEADER_BYTES = 64 << 10
# Scope key of a function that writes a piece of a body without stated length at once. It returns
# whether the client keeps up: after False the next piece should wait, as the ASGI function does.
WRITE_BODY = "xllm.write_body"
# A connection that does not complete a request's headers within this time is closed.
HEADER_TIMEOUT_SECONDS = 60.0


class _Parser(HttpRequestParser):
    """Ignores offers to speak another protocol, as RFC 9110 (7.8) lets a server do.

    Clients that would rather speak HTTP/2 offer it with every request, and WebSocket clients ask.
    llhttp takes what follows the headers of such a request for that other protocol, so the
    request is parsed again without its offer.
    """

    def __init__(self, protocol: GuardedHttpProtocol) -> None:
        super().__init__(protocol)
        # What comes after "Connection: close" was sent ahead of the answer; it is no error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse a piece of what the client sends."""
        parser, rest = self, memoryview(data)
        while (end := parser.parse(rest)) is not None:
            rest = rest[end:]
            parser = self._protocol.begin_again()

    def parse(self, data: bytes | memoryview) -> int | None:
        """Parse all of a piece, or up to the end of a head with an offer, which is returned."""
        try:
            super().feed_data(data)
        except HttpParserUpgrade as offer:
            if self.get_method() != b"CONNECT":
                return int(offer.args[0])
            # What follows is for a tunnel, which there is not.
        return None


class GuardedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP parser with a bound on header bytes and on the time to send them."""

    _in_headers = True
    _between_requests = True
    _num_begun = 0  # requests that began in the piece being parsed
    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # whose answer is being made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request's headers."""
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock, and the request that is being answered."""
        self._stop_timer()
        super().connection_lost(exc)  # tells the request that was read last
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

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
        """The request has begun in earnest, unless it comes again without what it offered."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return
        self._in_headers = False
        self._stop_timer()
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            _end_with_connection(self.cycle)
        else:
            self.scope[WRITE_BODY] = _body_writer(self.cycle)  # type: ignore[literal-required]
        if not self.pipeline:
            self._running = self.cycle

    def on_message_complete(self) -> None:
        """The request's last byte."""
        if self._in_headers:
            return
        super().on_message_complete()
        self._between_requests = True

    def on_response_complete(self) -> None:
        """The next request's turn, if one was sent ahead."""
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()

    def begin_again(self) -> _Parser:
        """Parse the head that has just been read without its ``Upgrade``; what goes on from there.

        It is a fresh parser: one that has read an offer and is to close reads nothing more.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = parser = _Parser(self)
        parser.parse(b"\r\n".join([*lines, b"\r\n"]))
        return parser

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _body_writer(cycle: RequestResponseCycle) -> Callable[[bytes], bool]:
    def write_body(body: bytes) -> bool:
        if cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return not cycle.flow.write_paused

    return write_body


def _end_with_connection(cycle: RequestResponseCycle) -> None:
    """Have an answer of no stated length end where its connection does: HTTP/1.0 has no chunks."""
    send_framed = cycle.send
    has_length = True

    async def send(message: Any) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            has_length = any(name.lower() == b"content-length" for name, _ in headers)
            if not has_length:
                cycle.chunked_encoding = False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send_framed(message)

    cycle.send = send  # type: ignore[method-assign]
