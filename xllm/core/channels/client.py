"""The end that connects: driven by an asyncio loop, one callback per wake-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from xllm.core.channels.channel import MAX_MESSAGE_BYTES, Codec


class ClientChannel:
    """Connects to a ``ServerChannel`` and hands over everything that arrived together.

    Args:
        address: the endpoint that the other end binds, before or after this one connects.
        peer_id: routing id that the other end expects.
        message_type: the tagged union of messages that may arrive.
        on_messages: called on the loop with one non-empty list per wake-up.
    """

    def __init__(
        self,
        address: str,
        peer_id: bytes,
        message_type: Any,
        on_messages: Callable[[list[Any]], None],
    ) -> None:
        self._address = address
        self._peer_id = peer_id
        self._codec = Codec(message_type)
        self._on_messages = on_messages
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes]
        self._loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        """Connect and start listening on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, self._peer_id)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(self._address)
        self._loop.add_reader(self._socket.fileno(), self.drain)

    def close(self) -> None:
        """Stop listening and drop what was not sent; harmless when closed."""
        if self._context is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._context.term()
            self._context = None

    def send(self, message: msgspec.Struct) -> None:
        """Queue ``message``; never blocks. Dropped when closed, for nobody is there any more."""
        if self._context is None:
            return
        self._socket.send(self._codec.encode(message), copy=False)
        # ZeroMQ's descriptor signals edges, and sending may have consumed one.
        if self._socket.poll(0):
            self._loop.call_soon(self.drain)

    def drain(self) -> None:
        """Hand over what has arrived, now; harmless when closed."""
        if self._context is None:
            return
        messages = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._codec.decode(frame)
            if message is not None:
                messages.append(message)
        if messages:
            self._on_messages(messages)
