"""The end that binds: synchronous, used by the engine between steps."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from xllm.core.channels.channel import MAX_MESSAGE_BYTES, Codec
from xllm.core.observability.logging import get_logger

logger = get_logger(__name__)

# How long a closing socket may still deliver its last messages (EngineDead).
_LINGER_MS = 500


class ServerChannel:
    """Binds an address and talks to the one peer that knows ``peer_id``; thread-confined.

    Frames of any other peer are dropped unread, so the random ``peer_id`` is also the secret
    that lets somebody in.

    Args:
        address: a ZeroMQ endpoint, ``ipc://...`` or ``tcp://host:port``.
        peer_id: routing id of the peer, 16 random bytes shared through a private pipe.
        message_type: the tagged union of messages that may arrive.
    """

    def __init__(self, address: str, peer_id: bytes, message_type: Any) -> None:
        self._address = address
        self._peer_id = peer_id
        self._codec = Codec(message_type)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes]

    def open(self) -> None:
        """Bind.

        Raises:
            zmq.ZMQError: the address is taken or not allowed.
        """
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        # Unbounded queues: the engine must never block on a slow server. What can pile up is
        # bounded by the tokens of the running requests.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(self._address)

    def close(self) -> None:
        """Close the socket, delivering what is queued within half a second."""
        if self._context is not None:
            self._socket.close()
            self._context.term()
            self._context = None

    def send(self, message: msgspec.Struct) -> None:
        """Queue ``message`` for the peer; dropped when it has not connected."""
        self._socket.send_multipart([self._peer_id, self._codec.encode(message)], copy=False)

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Any]:
        """Every valid message that has arrived; see ``Channel.receive``."""
        if timeout_seconds != 0.0:
            self._socket.poll(None if timeout_seconds is None else int(timeout_seconds * 1000))
        messages: list[Any] = []
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            if frames[0] != self._peer_id or len(frames) != 2:
                logger.warning("dropped a message from an unknown peer")
                continue
            message = self._codec.decode(frames[1])
            if message is not None:
                messages.append(message)
