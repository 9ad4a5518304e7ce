"""What every channel is: one peer, whole messages, in order."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from xllm.core.observability.logging import get_logger
from xllm.core.utils import arrays

logger = get_logger(__name__)

# A frame above this is refused by the socket before it is read into memory.
MAX_MESSAGE_BYTES = 1 << 28


class Channel(Protocol):
    """A bidirectional link to one peer."""

    def send(self, message: msgspec.Struct) -> None:
        """Queue ``message``; never blocks."""

    def receive(self, timeout_seconds: float | None = 0.0) -> list[Any]:
        """Every message that has arrived.

        Waits up to ``timeout_seconds`` for the first one; None waits for ever, 0 not at all.
        """


class Codec:
    """Encodes any message struct, decodes those of one tagged union."""

    def __init__(self, message_type: Any) -> None:
        self._encoder = arrays.encoder()
        self._decoder = arrays.decoder(message_type)

    def encode(self, message: msgspec.Struct) -> bytes:
        """The wire form of ``message``."""
        return self._encoder.encode(message)

    def decode(self, frame: bytes) -> Any | None:
        """The message in ``frame``, or None (and one log line) when it is malformed."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            logger.warning("dropped a malformed message of %d bytes: %s", len(frame), error)
            return None
