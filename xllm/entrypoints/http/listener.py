"""Accepts connections, as many as wait, in one turn of the event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable

from xllm.core.observability.logging import get_logger

logger = get_logger(__name__)

# libuv, and with it uvloop's own servers, accepts one connection a turn. A turn takes milliseconds
# where many answers stream: the last of hundreds of clients that come together would wait for a
# second, or for its operating system's second try where the kernel's queue was full.
_ACCEPTED_PER_TURN = 256
# Their requests are read a few at once: the engine is not to wait for the last of them.
_OPENED_PER_TURN = 8
# With no descriptor or memory left for a connection, how long until the next try.
_RETRY_SECONDS = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Serves the connections of a listening socket. Made on the loop that it lives on.

    Args:
        listener: bound and listening; the caller closes it after ``close``.
        new_protocol: makes what a connection is served by.
    """

    def __init__(
        self, listener: socket.socket, new_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._accepted: deque[socket.socket] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None  # the next one that opens some
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nothing more. Idempotent."""
        self._loop.remove_reader(self._listener)
        for handle in (self._retry, self._turn):
            if handle is not None:
                handle.cancel()
        while self._accepted:
            self._accepted.popleft().close()

    async def wait_closed(self) -> None:
        """Wait until what was being opened is, so that whoever closes connections finds it."""
        while self._opening:
            await asyncio.wait(self._opening)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                self._accepted.append(self._listener.accept()[0])
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    logger.error("no connection can be accepted now: %s", error.strerror)
                    self._loop.remove_reader(self._listener)
                    self._retry = self._loop.call_later(_RETRY_SECONDS, self._listen)
                break  # no other waits, or it left before its turn
        if self._accepted and self._turn is None:
            self._open_some()

    def _open_some(self) -> None:
        for _ in range(min(_OPENED_PER_TURN, len(self._accepted))):
            opening = self._loop.create_task(self._open(self._accepted.popleft()))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        self._turn = self._loop.call_soon(self._open_some) if self._accepted else None

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._new_protocol, connection)
        except OSError:
            connection.close()  # its client has left
