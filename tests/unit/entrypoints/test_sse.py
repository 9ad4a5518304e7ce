"""The streaming path: framing, merging, errors after the headers, departed and slow clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_stack import BODY_PATH as PATH
from fake_stack import FakeStack, Running, app_of, call, stream_of, until

from xllm.frontend.protocol.errors import RequestError

BODY = {"prompt": "x", "stream": True}


def streaming(chunks: AsyncIterator[list[Any]]) -> FakeStack:
    async def handle(body: Any) -> Any:
        return chunks

    return FakeStack(handle)


async def slow_answer(streamed: bool, events: list[str]) -> Any:
    """Takes 30 seconds, or streams for as long; notes "closed" when it is cancelled."""

    async def chunks() -> AsyncIterator[list[Any]]:
        try:
            yield [{"i": 0}]
            await asyncio.sleep(30)
        finally:
            events.append("closed")

    if streamed:
        return chunks()
    try:
        return await asyncio.sleep(30)
    finally:
        events.append("closed")


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


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_cancels_its_request(streamed: bool) -> None:
    events: list[str] = []

    async def handle(body: Any) -> Any:
        events.append("begun")
        return await slow_answer(streamed, events)

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            reader, writer = await server.post(BODY)
            await until(lambda: events == ["begun"])
            if streamed:
                await reader.readuntil(b'data: {"i":0}')
            writer.close()
            await until(lambda: events == ["begun", "closed"])

    asyncio.run(scenario())


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("turn", [0, 1])
def test_a_client_that_leaves_cancels_its_request_though_others_were_sent_ahead(
    streamed: bool, turn: int
) -> None:
    """``turn`` answers are complete when the client leaves."""
    events: list[str] = []

    async def handle(body: Any) -> Any:
        events.append("begun")
        if events.count("begun") <= turn:
            return {"text": "answer"}
        return await slow_answer(streamed, events)

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            content = json.dumps(BODY).encode()
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
            _, writer = await server.send((head.encode() + content) * (turn + 3))
            await until(lambda: events.count("begun") == turn + 1)
            writer.close()
            await until(lambda: events.count("closed") == 1)
            await asyncio.sleep(0.05)
            assert events.count("begun") == turn + 1  # the others are not begun

    asyncio.run(scenario())


class Relayed:
    """Numbered chunks: the first is asked for; each of the others is relayed, or asked for when
    the client of the one before did not keep up."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._next = 0
        self.num_asked = 0
        self.closed = False

    def __aiter__(self) -> "Relayed":
        return self

    async def __anext__(self) -> list[Any]:
        if self._next == len(self._texts):
            raise StopAsyncIteration
        self.num_asked += 1
        return self._take()

    async def relay(self, write: Callable[[list[Any]], bool]) -> None:
        while self._next < len(self._texts):
            await asyncio.sleep(0)
            if not write(self._take()):
                return

    async def aclose(self) -> None:
        self.closed = True

    def _take(self) -> list[Any]:
        self._next += 1
        return [{"i": self._next - 1, "text": self._texts[self._next - 1]}]


async def events_read(reader: asyncio.StreamReader) -> list[str]:
    await reader.readuntil(b"\r\n\r\n")
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    return events_of(body.decode())


@pytest.mark.parametrize("stalls", [False, True])
def test_events_are_written_by_who_has_them_while_the_client_keeps_up(stalls: bool) -> None:
    source = Relayed(["x" * 20_000] * 500)

    async def handle(body: Any) -> Any:
        return source

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            reader, writer = await server.post(BODY)
            if stalls:
                await asyncio.sleep(0.5)
                assert source._next < 500  # the rest waits for its client
            *events, done = await asyncio.wait_for(events_read(reader), 10.0)
            assert [json.loads(e)["i"] for e in events] == list(range(500))
            assert done == "[DONE]"
            writer.close()
        assert source.closed

    asyncio.run(scenario())
    assert source.num_asked > 1 or not stalls


def test_a_client_that_leaves_ends_a_stream_that_is_relayed() -> None:
    class Silent(Relayed):
        async def relay(self, write: Callable[[list[Any]], bool]) -> None:
            await asyncio.sleep(30)

    source = Silent(["x"])

    async def handle(body: Any) -> Any:
        return source

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            reader, writer = await server.post(BODY)
            await reader.readuntil(b'"i":0')
            writer.close()
            await until(lambda: source.closed)

    asyncio.run(scenario())


def test_an_error_while_events_are_relayed_is_one_event_then_the_end() -> None:
    class Broken(Relayed):
        async def relay(self, write: Callable[[list[Any]], bool]) -> None:
            raise RequestError(500, "the engine is dead")

    async def handle(body: Any) -> Any:
        return Broken(["x"])

    async def scenario() -> None:
        async with Running(FakeStack(handle)) as server:
            reader, _ = await server.post(BODY)
            first, error = await asyncio.wait_for(events_read(reader), 5.0)
            assert json.loads(first)["i"] == 0
            assert json.loads(error)["error"]["message"] == "the engine is dead"

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
