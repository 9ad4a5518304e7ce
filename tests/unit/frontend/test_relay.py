"""Streams whose chunks are written where the engine's outputs arrive."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.fakes.engine_client import row
from tests.fakes.services import LENGTH, Stack, answer, joined, run
from xllm.frontend.protocol import decode_request
from xllm.frontend.protocol.responses import ResponsesRequest
from xllm.frontend.services.answers import chunks as chunks_module
from xllm.frontend.services.answers import dispatcher as dispatcher_module

# Events that the same request gives twice differ in these alone.
TIMES = {"id", "created"}


class Client:
    """Reads a stream as a connection does: asks for chunks, and has those relayed that it can."""

    def __init__(self, stream, takes: int = 1 << 30) -> None:
        self.stream = stream
        self.num_asked = self.num_relayed = 0
        self._takes = takes  # relayed chunks, until one is to be waited for
        self.events: list[dict] = []

    async def read(self) -> list[dict]:
        async for chunks in self.stream:
            self.num_asked += 1
            self._keep(chunks)
            await self.stream.relay(self.write)
        return self.events

    def write(self, chunks) -> bool:
        self.num_relayed += 1
        self._keep(chunks)
        return self.num_relayed % self._takes > 0

    def _keep(self, chunks) -> None:
        assert chunks
        self.events += msgspec.json.decode(msgspec.json.encode(chunks))


async def relayed(kind: str, text: str, *, takes: int = 1 << 30, columns=None, **fields):
    stack = Stack()
    task = stack.start(kind, stream=True, **fields)
    playing = asyncio.ensure_future(stack.play(text, logprobs=columns))
    client = Client(await task, takes)
    await client.read()
    await playing
    stack.dispatcher.check()
    assert stack.dispatcher.num_open == 0
    return client


def bare(events):
    return [{k: v for k, v in event.items() if k not in TIMES} for event in events]


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("takes", [1, 2, 1 << 30])
@pytest.mark.parametrize("stop", [None, "wor"])
def test_a_relayed_stream_says_what_one_that_is_asked_for_says(kind, takes, stop):
    text = "hello 日本 😀 the world!"
    fields = {"stop": stop, "max_tokens": 99, "stream_options": {"include_usage": True}}
    asked = run(answer(kind, text, stream=True, **fields))
    client = run(relayed(kind, text, takes=takes, **fields))
    assert joined(client.events, kind) == joined(asked, kind)
    assert bare(client.events[-2:]) == bare(asked[-2:])  # the end, and the usage
    assert client.num_relayed >= 3
    if takes > 99:
        assert client.num_asked <= 4  # the first, the last, the usage


@pytest.mark.parametrize("inline", [0, 256])
def test_news_that_take_long_to_shape_are_asked_for(monkeypatch, inline):
    monkeypatch.setattr(chunks_module, "_INLINE_ENTRIES", inline)
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 99}
    asked = run(answer("chat", "hello you", stream=True, logprobs_columns=2, **fields))
    client = run(relayed("chat", "hello you", columns=2, **fields))
    contents = [
        [
            entry
            for e in events
            for c in e["choices"]
            for entry in (c["logprobs"] or {"content": []})["content"]
        ]
        for events in (client.events, asked)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 4
    assert bool(client.num_relayed) == bool(inline)


def test_a_response_is_relayed_with_the_same_events():
    async def events(relay: bool):
        stack = Stack()
        body = {"input": "Hi", "stream": True, "store": False}
        request = decode_request(ResponsesRequest, msgspec.json.encode(body))
        task = asyncio.ensure_future(stack.responses.handle(request))
        playing = asyncio.ensure_future(stack.play("hello you"))
        client = Client(await task)
        if relay:
            await client.read()
            assert client.num_relayed >= 3
        else:
            async for chunks in client.stream:
                client._keep(chunks)
        await playing
        return [(event["type"], event.get("delta")) for event in client.events]

    one, other = run(events(True)), run(events(False))
    assert one == other
    assert one[-1][0] == "response.completed"


class Panic(BaseException):
    """As extensions written in Rust raise."""


@pytest.mark.parametrize("error", [ZeroDivisionError(), StopIteration(), Panic()])
def test_an_error_while_chunks_are_shaped_fails_their_stream_alone(monkeypatch, error):
    def shape(news):
        raise error

    async def scenario():
        stack = Stack()
        streams = [stack.start("completion", stream=True, max_tokens=9) for _ in range(2)]
        handles = [await stack.request(i) for i in range(2)]
        stack.client.deliver(*(row(handle, stack.ids("a")) for handle in handles))
        broken, fine = [Client(await stream) for stream in streams]
        reading = [asyncio.ensure_future(client.read()) for client in (broken, fine)]
        await asyncio.sleep(0.01)
        monkeypatch.setattr(broken.stream._maker, "chunks", shape)
        stack.client.deliver(*(row(handle, stack.ids("b")) for handle in handles))
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            await reading[0]
        await broken.stream.aclose()
        assert stack.client.aborted == [(handles[0], -1, False)]
        stack.client.deliver(row(handles[1], stack.ids("c"), LENGTH))
        assert joined(await reading[1], "completion") == "abc"
        stack.dispatcher.check()

    run(scenario())


def test_news_of_many_streams_take_turns_and_merge_meanwhile(monkeypatch):
    monkeypatch.setattr(dispatcher_module, "_RELAYED_PER_TURN", 2)

    async def scenario():
        stack = Stack()
        streams = [stack.start("completion", stream=True, max_tokens=9) for _ in range(5)]
        handles = [await stack.request(i) for i in range(5)]
        stack.client.deliver(*(row(handle, stack.ids("a")) for handle in handles))
        clients = [Client(await stream) for stream in streams]
        reading = [asyncio.ensure_future(client.read()) for client in clients]
        await asyncio.sleep(0.01)
        stack.client.deliver(*(row(handle, stack.ids("b")) for handle in handles))
        await asyncio.sleep(0)  # one turn
        assert [client.num_relayed for client in clients] == [1, 1, 0, 0, 0]
        # The engine is a step ahead: those that wait have two tokens to say, at once.
        stack.client.deliver(*(row(handle, stack.ids("c")) for handle in handles))
        await asyncio.sleep(0.01)
        assert [client.num_relayed for client in clients] == [2, 2, 1, 1, 1]
        assert {joined(client.events, "completion") for client in clients} == {"abc"}
        # An end waits for nobody's turn.
        stack.client.deliver(*(row(handle, stack.ids("d"), LENGTH) for handle in handles))
        assert {joined(await each, "completion") for each in reading} == {"abcd"}
        assert [client.num_relayed for client in clients] == [2, 2, 1, 1, 1]

    run(scenario())


def test_the_engines_death_reaches_a_relayed_stream():
    async def scenario():
        stack = Stack()
        stream = stack.start("completion", stream=True, max_tokens=9)
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("a")))
        client = Client(await stream)
        reading = asyncio.ensure_future(client.read())
        await asyncio.sleep(0.01)
        stack.client.deliver(row(handle, stack.ids("b")))
        stack.client.die("the engine is dead")
        with pytest.raises(Exception, match="the engine is dead"):
            await reading

    run(scenario())
