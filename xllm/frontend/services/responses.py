"""OpenAI's ``/v1/responses``."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from xllm.core.observability.logging import get_logger
from xllm.frontend.intake.responses import (
    CHAT_FIELDS,
    chat_of,
    messages_of,
    messages_of_output,
)
from xllm.frontend.protocol.chat import ChatCompletionRequest, ChatMessage
from xllm.frontend.protocol.errors import RequestError, in_the_words_of
from xllm.frontend.protocol.response_events import ResponseEvent
from xllm.frontend.protocol.responses import (
    DeletedResponse,
    ItemList,
    Reasoning,
    Response,
    ResponsesRequest,
    TextConfig,
    TextFormat,
)
from xllm.frontend.services.answers.chunks import SETTLE_SECONDS
from xllm.frontend.services.answers.conversation import Conversation, Conversations
from xllm.frontend.services.answers.shared import off_loop
from xllm.frontend.services.response_answer import ResponseAnswer
from xllm.frontend.services.response_store import ResponseStore, StoredResponse

logger = get_logger(__name__)

_PAGE_ITEMS = 20
_MAX_PAGE_ITEMS = 100
# A server that was told to stop keeps a response this long for a client that polls: more than
# clients usually pause.
_FETCH_SECONDS = 5.0


class ResponseService:
    """Makes, keeps and finds responses.

    Args:
        conversations: finds the answers.
        store: keeps the responses.
        max_background: most responses that may be made in the background at once.
    """

    def __init__(
        self, conversations: Conversations, store: ResponseStore, max_background: int
    ) -> None:
        self._conversations = conversations
        self._store = store
        self._max_background = max_background
        self._free = asyncio.Semaphore(max_background)
        self._background: dict[str, asyncio.Task[None]] = {}
        # When those were done that nobody has asked for since; only the last _FETCH_SECONDS count.
        self._unfetched: dict[str, float] = {}
        self._all_fetched = asyncio.Event()

    async def handle(self, body: ResponsesRequest) -> Response | ResponseStream:
        """A whole response, a stream of its events, or one that is made in the background.

        Raises:
            RequestError: the request is refused or failed.
        """
        before: list[ChatMessage] = []
        if body.previous_response_id is not None:
            before = self._store.messages(body.previous_response_id, "previous_response_id")
        try:
            chat = chat_of(body, before)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        if body.background:
            return await self._start(body, chat, before)
        making = await self._open(body, chat, before)
        if not body.stream:
            return await making.whole()
        try:
            await making.conversation.settle(SETTLE_SECONDS)
        except BaseException:
            making.conversation.close()
            raise
        return ResponseStream(making)

    def get(self, response_id: str) -> Response:
        """A response that is kept; raises ``RequestError`` (404) for any other."""
        response = self._store.response(response_id)
        if response_id not in self._background:
            self._fetched(response_id)
        return response

    def delete(self, response_id: str) -> DeletedResponse:
        """Forget a response, and stop making it; raises as ``get`` does."""
        self._store.delete(response_id)
        if (task := self._background.get(response_id)) is not None:
            task.cancel()
        self._fetched(response_id)
        return DeletedResponse(response_id)

    async def cancel(self, response_id: str) -> Response:
        """Stop a response that is made in the background; one that is done stays as it is.

        Raises:
            RequestError: 404; 400 for a response that was not made in the background.
        """
        response = self.get(response_id)
        if not response.background:
            message = "response_id is not of a background response: close its connection instead"
            raise RequestError(400, message, param="response_id")
        if (task := self._background.get(response_id)) is not None:
            task.cancel()
            await asyncio.wait([task])
            response = self.get(response_id)
        return response

    @property
    def num_background(self) -> int:
        """Responses that are made in the background now."""
        return len(self._background)

    async def wait_background(self, timeout_seconds: float) -> bool:
        """Whether those that are made in the background now came to an end within the time.

        Of the rest of the time, clients get a part to fetch what they came to.
        """
        deadline = time.monotonic() + timeout_seconds
        if self._background:
            await asyncio.wait(self._background.values(), timeout=timeout_seconds)
        finished = not self._background
        self._forget_unfetched()
        if self._unfetched:
            until = min(deadline, max(self._unfetched.values()) + _FETCH_SECONDS)
            self._all_fetched.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_fetched.wait(), until - time.monotonic())
        return finished

    def input_items(
        self, response_id: str, *, limit: int = _PAGE_ITEMS, order: str = "desc", after: str = ""
    ) -> ItemList:
        """A page of what a response was asked with, newest first unless ``order`` is ``asc``.

        Raises:
            RequestError: 404; 400 for a bad limit, order or place to begin after.
        """
        if not 1 <= limit <= _MAX_PAGE_ITEMS:
            raise RequestError.bad_field("limit", f"must be between 1 and {_MAX_PAGE_ITEMS}")
        if order not in ("asc", "desc"):
            raise RequestError.bad_field("order", "must be asc or desc")
        items = self._store.input_items(response_id)
        if order == "desc":
            items.reverse()
        if after:
            places = [i for i, item in enumerate(items) if item["id"] == after]
            if not places:
                raise RequestError.bad_field("after", "is no item of this response")
            items = items[places[0] + 1 :]
        page = items[:limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        return ItemList(page, first, last, len(items) > limit)

    async def _start(
        self, body: ResponsesRequest, chat: ChatCompletionRequest, before: list[ChatMessage]
    ) -> Response:
        """Begin a response in the background."""
        if self._free.locked():
            most = self._max_background
            raise RequestError(429, f"{most} responses are made in the background already")
        await self._free.acquire()  # at once: one was free
        try:
            making = await self._open(body, chat, before)
        except BaseException:
            self._free.release()
            raise
        response = making.answer.response
        making.keep()
        self._background[response.id] = asyncio.create_task(self._finish(making))
        return response

    async def _open(
        self, body: ResponsesRequest, chat: ChatCompletionRequest, before: list[ChatMessage]
    ) -> _Making:
        with in_the_words_of(CHAT_FIELDS):
            conversation = await self._conversations.open(chat)
        response = _new_response(body, self._conversations.served.shown(body.model))
        stored = StoredResponse(response, _shown_items(body, response.id), before)
        if response.store:
            stored.messages = [*before, *messages_of(body.input)]
        return _Making(
            ResponseAnswer(response), conversation, self._conversations, stored, self._store
        )

    async def _finish(self, making: _Making) -> None:
        """Make a response in the background, whatever comes."""
        try:
            await making.whole()
        except RequestError as error:
            making.answer.fail(error)
        except asyncio.CancelledError:
            making.answer.cancel()
        except Exception:
            logger.exception("response %s failed", making.answer.response.id)
            making.answer.fail(RequestError(500, "internal error"))
        finally:
            del self._background[making.answer.response.id]
            self._free.release()
        making.keep_changes()
        self._forget_unfetched()
        if self._store.has(making.answer.response.id):
            self._unfetched[making.answer.response.id] = time.monotonic()

    def _fetched(self, response_id: str) -> None:
        self._unfetched.pop(response_id, None)
        if not self._unfetched:
            self._all_fetched.set()

    def _forget_unfetched(self) -> None:
        """Give up on clients that did not come in time."""
        limit = time.monotonic() - _FETCH_SECONDS
        self._unfetched = {name: done for name, done in self._unfetched.items() if done > limit}


class _Making:
    """A response, and the conversation that it comes from."""

    def __init__(
        self,
        answer: ResponseAnswer,
        conversation: Conversation,
        conversations: Conversations,
        stored: StoredResponse,
        store: ResponseStore,
    ) -> None:
        self.answer = answer
        self.conversation = conversation
        self._tokenizer = conversations.tokenizer
        self._stored = stored
        self._store = store

    async def whole(self) -> Response:
        """The finished response. Cancelling the call aborts it in the engine."""
        try:
            while news := await self.conversation.read():
                self.answer.feed(news)
            await self.end()
        except BaseException:
            self.conversation.close()
            raise
        return self.answer.response

    async def end(self) -> list[ResponseEvent]:
        """Complete the response after the last news, and keep it."""
        thoughts = self.answer.reasoning
        num_tokens = await off_loop(
            len(thoughts), lambda: len(self._tokenizer.encode(thoughts, add_special_tokens=False))
        )
        events = self.answer.end(self.conversation.usage, num_tokens)
        response = self.answer.response
        if response.store:
            self._stored.messages = [*self._stored.messages, *messages_of_output(response.output)]
            # A background response may have been deleted while it was made.
            self.keep_changes() if response.background else self.keep()
        return events

    def keep(self) -> None:
        """Put the response into the store, unless it asked not to be."""
        if self.answer.response.store:
            self._store.put(self._stored)

    def keep_changes(self) -> None:
        """Put it there again, if it is still there."""
        if self._store.has(self.answer.response.id):
            self._store.put(self._stored)


class ResponseStream:
    """Async iterator of event lists: opening events, those of the answer, one that ends it.

    A failure on the way is the last event. ``aclose`` aborts what still runs.
    """

    def __init__(self, making: _Making) -> None:
        self._making = making
        self._opened = False
        self._ended = False

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> list[ResponseEvent]:
        making = self._making
        if self._ended:
            raise StopAsyncIteration
        if not self._opened:
            self._opened = True
            return making.answer.opening()
        try:
            while news := await making.conversation.read():
                if events := making.answer.feed(news):
                    return events
            self._ended = True
            return await making.end()
        except RequestError as error:
            await self.aclose()
            events = making.answer.fail(error)
            making.keep()
            return events
        except BaseException:
            await self.aclose()
            raise

    async def relay(self, write: Callable[[list[ResponseEvent]], bool]) -> None:
        """Have ``write`` called with events when there are some; see ``ChunkStream.relay``."""
        conversation, answer = self._making.conversation, self._making.answer

        def on_news() -> bool:
            events = answer.feed(conversation.take())
            return not events or write(events)

        if not self._ended:
            await conversation.relay(on_news)

    async def aclose(self) -> None:
        """Abort what still runs. Idempotent."""
        self._ended = True
        self._making.conversation.close()


def _new_response(body: ResponsesRequest, model: str) -> Response:
    text = body.text or TextConfig()
    if text.format is None:
        text = TextConfig(TextFormat("text"), text.verbosity)
    return Response(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        model=model,
        status="in_progress",
        output=[],
        background=bool(body.background),
        store=body.store is not False,
        tools=body.tools or [],
        tool_choice=body.tool_choice if body.tool_choice is not None else "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text=text,
        reasoning=body.reasoning or Reasoning(),
        metadata=body.metadata or {},
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        previous_response_id=body.previous_response_id,
        user=body.user,
    )


def _shown_items(body: ResponsesRequest, response_id: str) -> list[dict[str, Any]]:
    """The input as a list of items with ids, as a client reads it back."""
    prefix = f"item_{response_id.removeprefix('resp_')}"
    if isinstance(body.input, str):
        content = [{"type": "input_text", "text": body.input}]
        return [{"id": f"{prefix}_0", "type": "message", "role": "user", "content": content}]
    items = []
    for i, item in enumerate(body.input):
        shown = {k: v for k, v in msgspec.to_builtins(item).items() if v is not None}
        shown.setdefault("id", f"{prefix}_{i}")
        shown.setdefault("type", "message")
        if shown["type"] == "message" and isinstance(shown.get("content"), str):
            kind = "output_text" if shown.get("role") == "assistant" else "input_text"
            shown["content"] = [{"type": kind, "text": shown["content"]}]
        items.append(shown)
    return items
