"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class UntilDisconnect:
    """Asynchronous context: the client's departure cancels what runs inside, and raises
    ``ClientDisconnect``.

    It works as ``asyncio.timeout`` does: in the task that enters it. Work in a task of its own
    would take two more turns of the event loop, each as long as a token for every stream.

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
        self._watch = asyncio.create_task(self._cancel_on_departure(task))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()  # also one that is about to learn of the departure
        own = self._gone and self._task.uncancel() <= self._num_cancels
        if own and isinstance(error, asyncio.CancelledError):
            raise ClientDisconnect from error

    async def _cancel_on_departure(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # Here and not in a callback of this task, which would come a turn later: after the end.
        self._gone = True
        task.cancel()
