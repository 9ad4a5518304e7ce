"""One chat answer as typed news, for every API that has conversations.

The chat, responses and messages endpoints differ in how they frame an answer. What the answer is
(content, reasoning, tool calls, why it ended, what it cost) is found out here, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.parsers import MessageParser
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.usage import Usage
from xllm.frontend.services.answers.dispatcher import AnswerStream, OutputDispatcher, PromptDelta
from xllm.frontend.services.answers.shared import check_stream_fields, off_loop, usage_of


class Conversations:
    """Opens answers to conversations.

    Args:
        factory: makes engine requests.
        dispatcher: sends them and brings the answers.
        served: the names that ``model`` may have.
    """

    def __init__(
        self, factory: RequestFactory, dispatcher: OutputDispatcher, served: ServedModels
    ) -> None:
        self.served = served
        self.tokenizer = factory.tokenizer
        self._factory = factory
        self._dispatcher = dispatcher

    @property
    def bounds_thoughts(self) -> bool:
        """Whether the model's thoughts can have a budget."""
        return self._factory.formats.thought_tags is not None

    async def open(self, body: ChatCompletionRequest) -> Conversation:
        """Send a conversation to the engine; the caller reads the answer and closes it.

        With ``body.stream`` every ``read`` brings one step's news, without it the only one brings
        everything.

        Raises:
            RequestError: the request is refused.
        """
        self.served.adapter(body.model)
        check_stream_fields(body)
        prepared = await off_loop(intake_chars(body), lambda: self._factory.from_chat(body))
        await self._factory.grammars.check(prepared.request, prepared.grammar_field)
        stream = self._dispatcher.submit(
            [prepared], whole=not body.stream, keep_entries=bool(body.return_token_ids)
        )
        return Conversation(prepared, stream)


class Conversation:
    """One open answer. Close it in every case.

    Args:
        prepared: what was sent to the engine.
        stream: brings the answer's text.
    """

    def __init__(self, prepared: PreparedRequest, stream: AnswerStream) -> None:
        self.request_id = prepared.request.request_id
        self.created = int(time.time())
        self._request = prepared.request
        self._stream = stream
        self._parsers: list[MessageParser] | None = None
        if prepared.new_parser is not None:
            self._parsers = [prepared.new_parser() for _ in range(prepared.request.params.n)]

    @property
    def usage(self) -> Usage:
        """Tokens read and written so far."""
        return usage_of(self._stream.answers)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The rendered conversation."""
        ids: list[int] = self._request.prompt_token_ids.tolist()
        return ids

    @property
    def prompt_logprobs(self) -> list[TokenEntry]:
        """One entry per prompt token, if asked for."""
        return self._stream.answers[0].prompt_logprobs

    async def settle(self, timeout_seconds: float) -> None:
        """Wait for the engine's first word, so that a refusal becomes an HTTP status.

        Raises:
            RequestError: the engine refused the request.
        """
        await self._stream.settle(timeout_seconds)

    async def read(self) -> list[ChoiceDelta]:
        """What the choices gained since the last call, waiting for something.

        Content is in ``text``. A choice whose parser keeps everything back for now is left out, so
        waiting goes on where all do; empty once everything was read.

        Raises:
            RequestError: the answer failed.
        """
        while news := await self._stream.read():
            if said := self._parsed(news):
                return said
        return []

    def take(self) -> list[ChoiceDelta]:
        """What they gained, without waiting; raises as ``read`` does."""
        return self._parsed(self._stream.take())

    async def relay(self, on_news: Callable[[], bool]) -> None:
        """See ``AnswerStream.relay``."""
        await self._stream.relay(on_news)

    def close(self) -> None:
        """Abort what still runs. Idempotent."""
        self._stream.close()

    def _parsed(self, news: list[PromptDelta]) -> list[ChoiceDelta]:
        if self._parsers is None:
            return [delta for _, delta in news]
        deltas = [parse(self._parsers[delta.index], delta) for _, delta in news]
        return [delta for delta in deltas if _says_something(delta)]


def parse(parser: MessageParser, delta: ChoiceDelta) -> ChoiceDelta:
    """The same news, sorted into content, thoughts and calls; the delta is changed in place."""
    parsed = parser.feed(delta.text)
    if delta.finish_reason is not None:
        parsed += parser.finish()
        if delta.finish_reason == "stop" and parser.called:
            delta.finish_reason = "tool_calls"
    delta.text = parsed.content
    delta.reasoning = parsed.reasoning
    delta.tool_calls = parsed.tool_calls
    delta.pieces = parsed.pieces
    return delta


def _says_something(delta: ChoiceDelta) -> bool:
    return bool(
        delta.text or delta.reasoning or delta.tool_calls or delta.entries or delta.finish_reason
    )
