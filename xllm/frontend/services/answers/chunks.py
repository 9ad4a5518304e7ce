"""What streaming answers share: reading news, shaping chunks, ending well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

# How long a streaming answer may wait for the engine's first word before its headers go out.
SETTLE_SECONDS = 1.0
# Shaping a logprob entry with its alternatives takes up to 50 microseconds: more of them than this
# are shaped in a thread. A whole answer may bring hundreds of thousands, and so may news of a
# stream whose reader stalled.
_INLINE_ENTRIES = 256

NewsT = TypeVar("NewsT")
ChunkT = TypeVar("ChunkT")
WholeT = TypeVar("WholeT", covariant=True)


class NewsReader(Protocol[NewsT]):
    """Where an answer's news come from: ``AnswerStream`` or ``Conversation``."""

    async def read(self) -> list[NewsT]:
        """News since the last call, waiting for some; empty once everything was read."""

    def take(self) -> list[NewsT]:
        """News since the last call, without waiting for any."""

    async def relay(self, on_news: Callable[[], bool]) -> None:
        """Have ``on_news`` called when there are news; see ``AnswerStream.relay``."""

    async def settle(self, timeout_seconds: float) -> None:
        """Wait for the engine's first word, at most this long."""

    def close(self) -> None:
        """Stop what still runs. Idempotent."""


class ChunkMaker(Protocol[NewsT, ChunkT]):
    """Shapes an API's chunks."""

    def num_entries(self, news: list[NewsT]) -> int:
        """Logprob entries that the chunks for these news will show."""

    def chunks(self, news: list[NewsT]) -> list[ChunkT]:
        """Chunks for news that arrived together; may be empty."""

    def closing(self) -> list[ChunkT]:
        """Chunks after the last news."""


class WholeMaker(Protocol[NewsT, WholeT]):
    """Shapes an API's answer in one piece."""

    def num_entries(self, news: list[NewsT]) -> int:
        """Logprob entries that the answer will show."""

    def whole(self, news: list[NewsT]) -> WholeT:
        """The answer, from its only news."""


class ChunkStream(Generic[ChunkT]):
    """Async iterator of non-empty chunk lists, one list per wake-up.

    Ends by itself, or raises ``RequestError`` when the answer failed midway. ``aclose`` aborts what
    still runs; unlike a generator's it does so even before the first chunk was asked for.
    """

    def __init__(self, reader: NewsReader[NewsT], maker: ChunkMaker[NewsT, ChunkT]) -> None:
        self._reader = reader
        self._maker = maker
        self._ended = False
        self._held: list[NewsT] = []  # taken, too much to be shaped where news arrive

    def __aiter__(self) -> ChunkStream[ChunkT]:
        return self

    async def __anext__(self) -> list[ChunkT]:
        try:
            while not self._ended:
                news = self._held or await self._reader.read()
                self._held = []
                self._ended = not news
                if news:
                    maker = self._maker
                    if maker.num_entries(news) <= _INLINE_ENTRIES:  # every token but few
                        chunks = maker.chunks(news)
                    else:
                        chunks = await asyncio.to_thread(maker.chunks, news)
                else:
                    chunks = self._maker.closing()
                if chunks:
                    return chunks
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def relay(self, write: Callable[[list[ChunkT]], bool]) -> None:
        """Have ``write`` called with chunks when there are some, until it returns False.

        Also returns when the next ones are to be asked for: the last, and those that take long to
        shape.
        """
        reader, maker = self._reader, self._maker

        def on_news() -> bool:
            news = reader.take()
            if maker.num_entries(news) > _INLINE_ENTRIES:
                self._held = news
                return False
            chunks = maker.chunks(news)
            return not chunks or write(chunks)

        if not self._ended:
            await reader.relay(on_news)

    async def aclose(self) -> None:
        """Abort what still runs. Idempotent."""
        self._ended = True
        self._reader.close()


async def read_whole(reader: NewsReader[NewsT], maker: WholeMaker[NewsT, WholeT]) -> WholeT:
    """The answer in one piece. Cancelling the call aborts it in the engine.

    Raises:
        RequestError: the request was refused or failed.
    """
    try:
        news = await reader.read()
        if maker.num_entries(news) <= _INLINE_ENTRIES:
            return maker.whole(news)
        return await asyncio.to_thread(maker.whole, news)
    except BaseException:
        reader.close()
        raise


async def open_stream(
    reader: NewsReader[NewsT], maker: ChunkMaker[NewsT, ChunkT]
) -> ChunkStream[ChunkT]:
    """A stream whose request the engine has not refused at once. Cancelling the call aborts it.

    Raises:
        RequestError: the engine refused the request.
    """
    try:
        await reader.settle(SETTLE_SECONDS)
    except BaseException:
        reader.close()
        raise
    return ChunkStream(reader, maker)
