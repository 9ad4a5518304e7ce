"""A streaming HTTP/1.1 client that costs little enough to measure a fast server.

Times are read once per read of the socket: events that arrive together have one time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

_OK = 200
_ERROR_BYTES = 300


@dataclasses.dataclass(slots=True)
class Record:
    """What one request showed. Times are seconds of ``time.perf_counter``."""

    num_prompt_tokens: int
    start: float = 0.0
    end: float = 0.0
    stamps: list[float] = dataclasses.field(default_factory=list)  # one per event with a choice
    num_output_tokens: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it was answered in full."""
        return self.error is None


class StreamingClient:
    """Sends completion requests to one server over kept-alive connections.

    Args:
        base_url: scheme, host and port; a path is a prefix of every route.
        api_key: sent as a bearer token, if any.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url {base_url!r} must be like http://127.0.0.1:8000")
        self._host = parts.hostname
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = (
            f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\n{key}Content-Length: "
        ).encode()
        self._idle: list[_Connection] = []

    async def complete(self, body: bytes, num_prompt_tokens: int) -> Record:
        """Send one streaming completion request and read its answer to the end."""
        record = Record(num_prompt_tokens, start=time.perf_counter())
        head = self._head + str(len(body)).encode() + b"\r\n\r\n"
        try:
            connection = await self._connection()
            await connection.exchange(head + body, record)
            if connection.reusable:
                self._idle.append(connection)
        except OSError as error:
            record.error = str(error) or type(error).__name__
        record.end = time.perf_counter()
        return record

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, self._host, self._port, ssl=self._ssl
        )
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._record = Record(0)
        self._done: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self._last_event = b""
        self._now = 0.0

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    async def exchange(self, request: bytes, record: Record) -> None:
        """Write a request and fill the record from the answer.

        Raises:
            OSError: the connection was lost.
        """
        if self._transport is None:
            raise ConnectionError("the server closed the connection")
        self._record = record
        self._tail = self._last_event = b""
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._record.error = f"not HTTP: {error}"
            self.close()

    # Called by the parser.

    def on_body(self, data: bytes) -> None:
        *events, self._tail = (self._tail + data).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            self._last_event = event
            if b'"choices":[]' not in event and b'"choices": []' not in event:
                self._record.stamps.append(self._now)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != _OK:
            self._record.error = f"{status} {self._tail[:_ERROR_BYTES].decode(errors='replace')}"
        else:
            self._read_usage()
        if not self._parser.should_keep_alive():
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _read_usage(self) -> None:
        """Token counts come in the last event, after the choices."""
        try:
            last = json.loads(self._last_event.removeprefix(b"data: "))
        except ValueError:
            last = {}
        if "error" in last:
            self._record.error = str(last["error"].get("message", last["error"]))
        elif isinstance(last.get("usage"), dict) and self._record.stamps:
            self._record.num_output_tokens = last["usage"]["completion_tokens"]
        else:
            self._record.error = "the stream ended without tokens or usage"
