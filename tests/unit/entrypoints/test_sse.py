"""The streaming path: framing, merging, errors after the headers, departed and slow clients."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from fake_stack import FakeStack, app_of, call, stream_of

from xllm.entrypoints.http.lifecycle import WebServer
from xllm.frontend.protocol.errors import RequestError

PATH = "/v1/completions"
BODY = {"prompt": "x", "stream": True}


def streaming(chunks: AsyncIterator[list[Any]]) -> FakeStack:
    async def handle(body: Any) -> Any:
        return chunks

    return FakeStack(handle)


def events_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(e.startswith("data: ") and "\n" not in e for e in events)
    return [e.removeprefix("data: ") for e in events]


def test_chunks_are_events_and_done_comes_once_at_the_end() -> None:
    stack = streaming(stream_of([{"i": 0}], [{"i": 1}, {"i": "a\nb"}]))
    response = call(app_of(stack), "POST", PATH, json=BODY)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(response.text)
    assert [json.loads(c)["i"] for c in chunks] == [0, 1, "a\nb"]
    assert done == "[DONE]"


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_no_event_has_what_python_takes_for_the_end_of_a_line(end: str) -> None:
    text = f"a{end}b {end}–é"
    stack = streaming(stream_of([{"i": text}]))
    response = call(app_of(stack), "POST", PATH, json=BODY)
    event, done = [line for line in response.text.splitlines() if line]
    assert json.loads(event.removeprefix("data: "))["i"] == text
    assert done == "data: [DONE]"


def test_an_error_after_the_headers_is_one_event_then_the_end() -> None:
    stack = streaming(stream_of([{"i": 0}], error=RequestError(500, "the engine is dead")))
    response = call(app_of(stack), "POST", PATH, json=BODY)
    assert response.status_code == 200
    first, error = events_of(response.text)
    assert json.loads(first) == {"i": 0}
    assert json.loads(error)["error"]["message"] == "the engine is dead"


def test_an_unforeseen_error_in_a_stream_shows_nothing_of_itself() -> None:
    stack = streaming(stream_of([{"i": 0}], error=KeyError("secret")))
    response = call(app_of(stack), "POST", PATH, json=BODY)
    assert "secret" not in response.text
    assert json.loads(events_of(response.text)[-1])["error"]["type"] == "server_error"


def test_a_stream_that_takes_too_long_ends_with_an_error_and_is_closed() -> None:
    closed = []

    async def chunks() -> AsyncIterator[list[Any]]:
        try:
            yield [{"i": 0}]
            await asyncio.sleep(30)
        finally:
            closed.append(True)

    app = app_of(streaming(chunks()), request_timeout=0.1)
    response = call(app, "POST", PATH, json=BODY)
    assert json.loads(events_of(response.text)[-1])["error"]["type"] == "timeout_error"
    assert closed == [True]


class Running:
    """The application on a real socket."""

    def __init__(self, stack: FakeStack, **config: Any) -> None:
        self._app = app_of(stack, **config)

    async def __aenter__(self) -> "Running":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._web = WebServer(self._app)
        assert isinstance(self._web, uvicorn.Server)
        self._task = asyncio.create_task(self._web.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._web.stop()
        await self._task

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def post(self, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        content = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        return await self.send(head.encode() + content)


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("timed out")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_cancels_its_request(streamed: bool) -> None:
    events = []

    async def chunks() -> AsyncIterator[list[Any]]:
        try:
            yield [{"i": 0}]
            await asyncio.sleep(30)
        finally:
            events.append("closed")

    async def handle(body: Any) -> Any:
        events.append("begun")
        if streamed:
            return chunks()
        try:
            return await asyncio.sleep(30)
        finally:
            events.append("closed")

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            reader, writer = await server.post(BODY)
            await until(lambda: events == ["begun"])
            if streamed:
                await reader.readuntil(b'data: {"i":0}')
            writer.close()
            await until(lambda: events == ["begun", "closed"])

    asyncio.run(scenario())


def test_a_reader_that_stalls_stops_no_other_stream() -> None:
    async def handle(body: Any) -> Any:
        async def endless() -> AsyncIterator[list[Any]]:
            while True:
                yield [{"text": "x" * 10_000}]
                await asyncio.sleep(0)

        return endless() if body.prompt == "stall" else stream_of([{"text": "hello"}])

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            _, stalled = await server.post({"prompt": "stall"})
            await asyncio.sleep(0.2)
            for _ in range(20):
                reader, writer = await server.post({"prompt": "read"})
                await asyncio.wait_for(reader.readuntil(b"[DONE]"), 1.0)
                writer.close()
            stalled.close()

    asyncio.run(scenario())


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
    monkeypatch.setattr("xllm.entrypoints.http.security.HEADER_TIMEOUT_SECONDS", 0.1)

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
