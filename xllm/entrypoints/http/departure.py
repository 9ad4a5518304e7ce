"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class UntilDisconnect:
    """Asynchronous context: the client's departure cancels what runs inside, and raises
    ``ClientDisconnect``.

    It works as ``asyncio.timeout`` does: in the task that enters it. A task of its own would cost
    every answer two turns of the event loop, and a turn takes as long as a token for every stream.

    Args:
        receive: the request's, whose body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels = task.cancelling()
        self._watch = asyncio.create_task(_departure(self._receive))
        self._watch.add_done_callback(self._on_departure)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.remove_done_callback(self._on_departure)
        self._watch.cancel()
        own = self._gone and self._task.uncancel() <= self._num_cancels
        if own and isinstance(error, asyncio.CancelledError):
            raise ClientDisconnect from error

    def _on_departure(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            self._gone = True
            self._task.cancel()


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
