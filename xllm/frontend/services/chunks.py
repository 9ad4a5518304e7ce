"""What chat and completion streams share: reading answers, shaping chunks, ending well."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from xllm.frontend.services.dispatcher import AnswerStream, PromptDelta

# How long a streaming answer may wait for the engine's first word before its headers go out.
SETTLE_SECONDS = 1.0

ChunkT = TypeVar("ChunkT")


class ChunkMaker(Protocol[ChunkT]):
    """Shapes an API's chunks."""

    def chunks(self, news: list[PromptDelta]) -> list[ChunkT]:
        """Chunks for news that arrived together; may be empty."""

    def closing(self) -> list[ChunkT]:
        """Chunks after the last news."""


class ChunkStream(Generic[ChunkT]):
    """Async iterator of non-empty chunk lists, one list per wake-up.

    Ends by itself, or raises ``RequestError`` when the answer failed midway. ``aclose`` aborts what
    still runs; unlike a generator's it does so even before the first chunk was asked for.
    """

    def __init__(self, stream: AnswerStream, maker: ChunkMaker[ChunkT]) -> None:
        self._stream = stream
        self._maker = maker
        self._ended = False

    def __aiter__(self) -> ChunkStream[ChunkT]:
        return self

    async def __anext__(self) -> list[ChunkT]:
        try:
            while not self._ended:
                news = await self._stream.read()
                self._ended = not news
                chunks = self._maker.chunks(news) if news else self._maker.closing()
                if chunks:
                    return chunks
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Abort what still runs. Idempotent."""
        self._ended = True
        self._stream.close()
