"""Between the engine client and the services: answers advance here, their readers wake up.

No task and no queue per token: unread text waits, merged, in the answer's own state, so a reader
that stalls costs nobody else anything. A reader is woken once per step, or has its news relayed: a
coroutine that wakes up for every token of every stream is most of what a token costs a server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from xllm.core.messages.server import OutputBatch
from xllm.core.request.request import Request
from xllm.frontend.intake.factory import PreparedRequest
from xllm.frontend.output.answer import AnswerState
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.output.processor import OutputProcessor
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.services.answers.engine_client import EngineClient

# Streams whose news are relayed in one turn of the event loop, in a millisecond: requests that come
# and streams that end are not to wait for a token of every other stream.
_RELAYED_PER_TURN = 64

# News of one choice: the index of its prompt, and what it gained.
PromptDelta = tuple[int, ChoiceDelta]


class AnswerStream:
    """Reads the answers to the prompts of one API request. Close it in every case.

    Args:
        dispatcher: where the answers advance.
        answers: one per prompt.
        whole: wake the reader only when every answer is complete.
    """

    def __init__(
        self, dispatcher: OutputDispatcher, answers: Sequence[AnswerState], whole: bool
    ) -> None:
        self.answers = answers
        self._dispatcher = dispatcher
        self._whole = whole
        self._prompt_index = {id(answer): i for i, answer in enumerate(answers)}
        self._num_unfinished = len(answers)
        self._news: dict[int, AnswerState] = {}
        self._awake = False  # there is news that the reader has not fetched
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._on_news: Callable[[], bool] | None = None
        self._deadline = self._start_clock()

    @property
    def finished(self) -> bool:
        """Whether nothing will follow what is unread."""
        return self._num_unfinished == 0

    async def read(self) -> list[PromptDelta]:
        """News since the last call, waiting for some; empty once everything was read.

        Raises:
            RequestError: one of the answers failed.
        """
        while True:
            if self._awake or not self._num_unfinished:
                deltas = self.take()
                if deltas or not self._num_unfinished:
                    return deltas
            await self._next_notice()

    def take(self) -> list[PromptDelta]:
        """News since the last call, without waiting for any.

        Raises:
            RequestError: one of the answers failed.
        """
        self._awake = False
        news, self._news = self._news, {}
        return [(index, delta) for index, answer in news.items() for delta in answer.take()]

    async def relay(self, on_news: Callable[[], bool]) -> None:
        """Have ``on_news`` called, which takes the news, when there are some.

        Returns once it returned False, or raises what it raised; and for news that end an answer,
        which are left to be read.
        """
        if self._awake or not self._num_unfinished:
            return
        self._on_news = on_news
        try:
            await self._next_notice()
        finally:
            self._on_news = None

    async def settle(self, timeout_seconds: float) -> None:
        """Wait for the first sign of the engine, so that a refusal becomes an HTTP status.

        Raises:
            RequestError: the engine refused the request.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                if not self._awake:
                    await self._next_notice()
        except TimeoutError:
            return  # it queues; the headers may go out
        for answer in self._news.values():
            if answer.error is not None:
                raise answer.error

    def close(self) -> None:
        """Stop what still runs. Idempotent."""
        self._stop_clock()
        self._dispatcher.cancel(self)

    def notice(self, answer: AnswerState) -> bool:
        """An answer changed; called by the dispatcher, which is to relay the news if told so."""
        self._news[self._prompt_index[id(answer)]] = answer
        if answer.finished:
            self._num_unfinished -= 1
            if self.finished:
                self._stop_clock()
        if not self._whole or self.finished or answer.error is not None:
            self._awake = True
            if self._on_news is not None and not answer.finished:
                return True
            self._wake()
        return False

    def relay_news(self) -> None:
        """Hand over the news, unless the reader has them or is about to. Never raises."""
        if self._on_news is None or not self._awake:
            return
        try:
            if not self._on_news():
                self._wake()
        except BaseException as error:  # whatever it is, no other stream is to suffer from it
            plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            self._wake(error if plain else RuntimeError(repr(error)))

    def _wake(self, error: BaseException | None = None) -> None:
        self._on_news = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    def _start_clock(self) -> asyncio.TimerHandle | None:
        request = self.answers[0].request
        if request.deadline is None:
            return None
        return self._loop.call_later(
            max(0.0, request.deadline - time.monotonic()),
            self._dispatcher.expire,
            self,
            RequestError.deadline_exceeded(request.targets.deadline_ms),
        )

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _next_notice(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter


class OutputDispatcher:
    """The engine client's sink. Runs on the event loop's thread.

    Args:
        client: the engine; the dispatcher connects itself to it.
        processor: holds the answers.
    """

    def __init__(self, client: EngineClient, processor: OutputProcessor) -> None:
        self._client = client
        self._processor = processor
        self._streams: dict[int, AnswerStream] = {}
        self._due: dict[AnswerStream, None] = {}  # have news to relay, in order
        self._turn: asyncio.Handle | None = None  # the next one that relays some
        client.connect(self)

    @property
    def num_open(self) -> int:
        """Requests (prompts) that have not ended."""
        return len(self._streams)

    def submit(
        self,
        prepared: Sequence[PreparedRequest],
        *,
        whole: bool = False,
        keep_entries: bool = False,
    ) -> AnswerStream:
        """Send requests to the engine, together.

        Raises:
            RequestError: the engine cannot take them; nothing was started.
        """
        requests = [each.request for each in prepared]
        answers = [
            self._processor.add(
                each.request,
                keep_entries=keep_entries,
                token_table=each.token_table,
                grammar_field=each.grammar_field,
            )
            for each in prepared
        ]
        stream = AnswerStream(self, answers, whole)
        self._streams.update((request.handle, stream) for request in requests)
        try:
            self._client.add(requests)
        except BaseException:
            for request in requests:
                self._forget(request.handle)
            stream.close()
            raise
        return stream

    def begin(self, requests: Sequence[Request]) -> None:
        """Have requests counted that others will answer, which say so in ``part_of``.

        Raises:
            RequestError: the engine cannot take any.
        """
        self._client.begin(requests)

    def end(self, requests: Sequence[Request], reasons: Sequence[str]) -> None:
        """They have ended, for these reasons."""
        self._client.end(requests, reasons)

    def deliver(self, batch: OutputBatch) -> None:
        """Take one step's outputs. News that are relayed wait for their turn, and merge with those
        of the next step where a server falls behind its engine."""
        done = self._processor.process(batch)
        for answer in done.touched:
            handle = answer.request.handle
            stream = self._streams[handle]
            if answer.finished:
                del self._streams[handle]
            if stream.notice(answer):
                self._due[stream] = None
        if self._due and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._relay)
        if done.stopped:
            handles, choices = zip(*done.stopped, strict=True)
            self._client.abort(handles, choices, stopped=True)
        if done.failed:
            self._client.abort(done.failed, [-1] * len(done.failed))

    def fail(self, message: str) -> None:
        """The engine is dead: every open request ends with this error."""
        for answer in self._processor.fail_all(message):
            self._streams.pop(answer.request.handle).notice(answer)

    def cancel(self, stream: AnswerStream) -> None:
        """Abort what a stream still waits for."""
        self._abort(self._unfinished(stream))

    def expire(self, stream: AnswerStream, error: RequestError) -> None:
        """Abort what a stream still waits for, queued or running; its reader gets the error."""
        unfinished = self._unfinished(stream)
        self._abort(unfinished)
        for answer in unfinished:
            answer.fail(error)
            stream.notice(answer)

    def check(self) -> None:
        """Assert that every open answer has a reader, no other is kept, and news get their turn."""
        self._processor.check()
        assert len(self._streams) == self._processor.num_open
        assert not self._due or self._turn is not None

    def _relay(self) -> None:
        turn = list(itertools.islice(self._due, _RELAYED_PER_TURN))
        for stream in turn:
            del self._due[stream]
        # First, whatever becomes of this turn.
        self._turn = asyncio.get_running_loop().call_soon(self._relay) if self._due else None
        for stream in turn:
            stream.relay_news()

    def _unfinished(self, stream: AnswerStream) -> list[AnswerState]:
        return [each for each in stream.answers if each.request.handle in self._streams]

    def _abort(self, answers: Sequence[AnswerState]) -> None:
        handles = [answer.request.handle for answer in answers]
        for handle in handles:
            self._forget(handle)
        if handles:
            self._client.abort(handles, [-1] * len(handles))

    def _forget(self, handle: int) -> None:
        self._processor.discard(handle)
        self._streams.pop(handle, None)
