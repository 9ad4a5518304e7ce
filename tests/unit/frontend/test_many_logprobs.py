"""Answers with very many logprobs: shaped beside the event loop, the same text as few."""

import asyncio
import threading
import time

import msgspec
import pytest

from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.services.answers.chunks import ChunkStream, read_whole
from xllm.frontend.services.answers.logprobs import chat_logprobs, completion_logprobs
from xllm.frontend.services.answers.shared import shown_prompt_logprobs


class Names:
    """A tokenizer, as far as logprobs ask it."""

    def printable(self, token_id):
        return f"<{token_id}>"

    def bytes_of(self, token_id):
        return b"%d" % token_id


def entries(count, alternatives=20):
    near = [(i, -1.0 - i) for i in range(alternatives)]
    first = TokenEntry(7, None, 0, [])
    return [first, *(TokenEntry(i, -0.5, 1, near) for i in range(1, count))]


class Reader:
    """News of one answer."""

    def __init__(self, news):
        self._news = [news, []]
        self.closed = False

    async def read(self):
        return self._news.pop(0)

    async def settle(self, timeout_seconds):
        raise AssertionError

    def close(self):
        self.closed = True


class Maker:
    """Shapes entries as the chat service does; keeps the thread that did it."""

    def num_entries(self, news):
        return len(news)

    def whole(self, news):
        self.thread = threading.current_thread()
        return chat_logprobs(news, Names())

    def chunks(self, news):
        return [self.whole(news)]

    def closing(self):
        return []


async def longest_pause(work):
    """Seconds for which the event loop did nothing else while it awaited the work."""
    pauses = [0.0]

    async def beat():
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            pauses.append(time.perf_counter() - begin)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    result = await work
    encoded = msgspec.json.encode(result)
    await asyncio.sleep(0.005)
    beating.cancel()
    return max(pauses), encoded


async def through(maker, news, streamed):
    if not streamed:
        return await read_whole(Reader(news), maker)
    return (await anext(ChunkStream(Reader(news), maker)))[0]


@pytest.mark.parametrize("streamed", [False, True])
def test_many_entries_hold_up_nobody(streamed):
    maker = Maker()
    begin = time.perf_counter()
    pause, encoded = asyncio.run(longest_pause(through(maker, entries(20_000), streamed)))
    wall = time.perf_counter() - begin
    assert pause < wall / 3  # it was 1.0 of it
    assert maker.thread is not threading.main_thread()
    assert len(msgspec.json.decode(encoded)["content"]) == 20_000


@pytest.mark.parametrize("streamed", [False, True])
def test_few_entries_need_no_thread(streamed):
    maker = Maker()
    asyncio.run(longest_pause(through(maker, entries(20), streamed)))
    assert maker.thread is threading.main_thread()


def test_an_error_while_shaping_closes_the_answer():
    class Broken(Maker):
        def whole(self, news):
            raise KeyError("x")

    for count in (10, 1000):
        reader = Reader(entries(count))
        with pytest.raises(KeyError):
            asyncio.run(read_whole(reader, Broken()))
        assert reader.closed


@pytest.mark.parametrize(
    "shape",
    [
        lambda given: chat_logprobs(given, Names()).content,
        lambda given: completion_logprobs(given, range(len(given)), Names()).top_logprobs,
        lambda given: shown_prompt_logprobs(given, Names()),
    ],
)
def test_many_entries_read_as_few_do(shape):
    given = entries(100, 3)
    one_by_one = [shape([entry])[0] for entry in given]
    assert msgspec.json.encode(shape(given)) == msgspec.json.encode(one_by_one)
