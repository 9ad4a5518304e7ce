"""A raw HTTP/1.1 connection: it may send what a proper client never would."""

from __future__ import annotations

import asyncio
import dataclasses

from tests.fuzz.mutate import Case


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """``status`` 0: the server closed the connection, or the case did."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One keep-alive connection, opened again when needed."""

    def __init__(self, port: int, timeout_seconds: float) -> None:
        self._port = port
        self._timeout = timeout_seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, case: Case) -> Answer:
        """Send a case and read its answer.

        Raises:
            TimeoutError: there was none in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(case)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            self.close()
            return Answer(0, {}, b"")
        except TimeoutError:
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _exchange(self, case: Case) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        request = _bytes_of(case)
        if case.cut_request is not None:
            writer.write(request[: case.cut_request])
            await writer.drain()
            self.close()
            return Answer(0, {}, b"")
        writer.write(request)
        await writer.drain()
        if case.cut_answer is not None:
            await reader.read(case.cut_answer)
            self.close()
            return Answer(0, {}, b"")
        status_line = "HTTP/1.1 100"
        while status_line.startswith("HTTP/1.1 100"):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head[:-4].split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        status = int(status_line.split(" ", 2)[1])
        body = b"" if case.method == "HEAD" else await _body(reader, headers)
        if headers.get("connection") == "close":
            self.close()
        return Answer(status, headers, body)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


def _bytes_of(case: Case) -> bytes:
    lines = [f"{case.method} {case.path} HTTP/1.1".encode(), b"host: 127.0.0.1"]
    lines += [name.encode() + b": " + value for name, value in case.headers]
    if case.body or case.method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d" % len(case.body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + case.body
