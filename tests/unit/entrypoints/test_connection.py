"""Real sockets: heads without end, silence, requests sent ahead, offers of other protocols."""

import asyncio
import json
import logging
from typing import Any

import pytest
from fake_stack import FakeStack, Running, stream_of


@pytest.mark.parametrize("piece", [b"A: bcde\r\n" * 111, b"x" * 1000])
def test_headers_without_end_are_refused(piece: bytes) -> None:
    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            reader, writer = await server.send(b"GET / HTTP/1.1\r\nA: ")
            for _ in range(66):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answer = await asyncio.wait_for(reader.read(), 5.0)
            assert answer.startswith(b"HTTP/1.1 431 ")

    asyncio.run(scenario())


def test_headers_without_end_behind_other_requests_are_refused() -> None:
    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
            reader, writer = await server.send((get + b"\r\n") * 3 + get + b"A: ")
            served = b""
            while served.count(b"HTTP/1.1 200 ") < 3:
                served += await asyncio.wait_for(reader.read(1 << 16), 5.0)
            for _ in range(66):  # not many more: unread ones would reset the connection
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(0)
            answer = await asyncio.wait_for(reader.read(), 5.0)
            assert b"HTTP/1.1 431 " in answer

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [0, 5, 20, 40])
def test_requests_sent_ahead_are_served_however_many_arrive_together(cut: int) -> None:
    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
            body = b"x" * 90_000  # not JSON, so one answer of 400 among those of 200
            post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n"
            last = get + b"Connection: close\r\n\r\n"
            sent = (get + b"\r\n") * 2500 + post + body + last[:cut]
            reader, writer = await server.send(sent)
            answer = asyncio.create_task(reader.read())
            await asyncio.sleep(0.2)
            writer.write(last[cut:])
            read = await asyncio.wait_for(answer, 20.0)
            assert read.count(b"HTTP/1.1 200 ") == 2501
            assert read.count(b"HTTP/1.1 400 ") == 1
            assert read.count(b"HTTP/1.1 ") == 2502

    asyncio.run(scenario())


def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xllm.entrypoints.http.connection.HEADER_TIMEOUT_SECONDS", 0.1)

    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            for data in (b"", b"GET /health HTTP/1.1\r\nHost"):
                reader, _ = await server.send(data)
                assert await asyncio.wait_for(reader.read(), 5.0) == b""

    asyncio.run(scenario())


def test_many_requests_on_one_connection_are_served() -> None:
    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            reader, writer = await server.send(b"")
            for _ in range(50):
                writer.write(
                    b"GET /health HTTP/1.1\r\nHost: x\r\nX-Pad: " + b"y" * 5000 + b"\r\n\r\n"
                )
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                await reader.readuntil(b'{"status":"ok"}')
            writer.close()

    asyncio.run(scenario())


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def asked(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt}).encode()


def with_length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def prompt_of(body: Any) -> Any:
    return {"prompt": body.prompt}


def answers_to(sent: bytes, *, piece: int = 1 << 20) -> list[tuple[bytes, Any]]:
    """Status and body of every answer to what is sent, the last of which closes the connection."""

    async def scenario() -> list[tuple[bytes, Any]]:
        async with Running(FakeStack(prompt_of)) as server:
            reader, writer = await server.send(b"")
            for i in range(0, len(sent), piece):
                writer.write(sent[i : i + piece])
                await asyncio.sleep(0)
            raw = await asyncio.wait_for(reader.read(), 10.0)
            writer.close()
        found = []
        while raw:
            head, _, rest = raw.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            found.append((head.split(b" ", 2)[1], json.loads(rest[:length])))
            raw = rest[length:]
        return found

    return asyncio.run(scenario())


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, b"CONNECTION: upgrade\r\nUPGRADE: a, b\r\n"])
def test_a_request_that_offers_another_protocol_is_served_with_its_body(
    offer: bytes, piece: int, caplog: pytest.LogCaptureFixture
) -> None:
    body = asked("GET /v1/models HTTP/1.1\r\n\r\n")  # no request of its own, whatever comes of it
    chunks = b"%x\r\n%b\r\n5\r\n     \r\n0\r\n\r\n" % (len(body), body)
    sent = POST + offer + with_length(body) + POST + offer + CHUNKED + chunks
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with caplog.at_level(logging.WARNING):
        found = answers_to(sent + last, piece=piece)
    served = (b"200", json.loads(body))
    assert found == [served, served, (b"200", {"status": "ok"})]
    assert not caplog.records


def test_very_many_offers_that_arrive_together_are_served() -> None:
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    found = answers_to((get + WEBSOCKET + b"\r\n") * 2000 + get + b"Connection: close\r\n\r\n")
    assert found == [(b"200", {"status": "ok"})] * 2001


def test_a_stream_over_http_1_0_is_not_cut_into_chunks_and_ends_with_its_connection() -> None:
    async def handle(body: Any) -> Any:
        return stream_of([{"i": 0}], [{"i": 1}])

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            body = b'{"prompt": "x", "stream": true}'
            post = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b"
            reader, _ = await server.send(post % (len(body), body))
            answer = await asyncio.wait_for(reader.read(), 5.0)
            head, _, events = answer.partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head and b"connection: close" in head
            assert events == b'data: {"i":0}\n\ndata: {"i":1}\n\ndata: [DONE]\n\n'
            reader, _ = await server.send(b"GET /health HTTP/1.0\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 5.0)
            assert b"content-length: 15\r\n" in answer and answer.endswith(b'{"status":"ok"}')

    asyncio.run(scenario())


@pytest.mark.parametrize(("path", "status"), [(b"/ws", b"404"), (b"/v1/completions", b"405")])
def test_a_websocket_is_refused_in_the_envelope(
    path: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shake = b"GET %b HTTP/1.1\r\nHost: x\r\n%b" % (path, WEBSOCKET)
    with caplog.at_level(logging.WARNING):
        found = answers_to(shake + b"Connection: Upgrade, close\r\n\r\n")
    ((got, body),) = found
    assert (got, body["error"]["code"]) == (status, int(status))
    assert not caplog.records


@pytest.mark.parametrize("target", [b"/", b"example.org:443"])
def test_there_are_no_tunnels(target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Running(FakeStack()) as server:
            head = b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % target
            reader, writer = await server.send(head + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await asyncio.wait_for(reader.readline(), 5.0)
            assert answer.startswith(b"HTTP/1.1 4")
            writer.close()

    asyncio.run(scenario())
    assert "pip" not in caplog.text
