"""Responses that may be fetched or gone on from: kept for a while, in bounded memory."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from xllm.frontend.protocol.chat import ChatMessage
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.responses import Response

# What an entry takes beside its bytes: three objects, an id, a place in the order.
_ENTRY_BYTES = 768
_Items = list[dict[str, Any]]

# JSON, because what clients send came as that: MessagePack has no integers beyond 64 bits.
_encoder = msgspec.json.Encoder()
_decode_response = msgspec.json.Decoder(Response).decode
_decode_items = msgspec.json.Decoder(_Items).decode
_decode_messages = msgspec.json.Decoder(list[ChatMessage]).decode


@dataclasses.dataclass(slots=True)
class StoredResponse:
    """A response, what was asked for it, and the conversation up to and with it.

    ``messages`` leave out the instructions, which count for one response only.
    """

    response: Response
    input_items: Sequence[dict[str, Any]]
    messages: Sequence[ChatMessage]


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A stored response as JSON: objects would take many times the memory of their text."""

    response: bytes
    input_items: bytes
    messages: bytes
    expires: float

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input_items) + len(self.messages) + _ENTRY_BYTES


class ResponseStore:
    """Finds responses by id. The oldest go first when there are too many bytes.

    Ids are random: who knows one may read the response. What is read is a copy.

    Args:
        max_bytes: of memory for all entries.
        ttl_seconds: an entry's life since it was last put.
        clock: seconds.
    """

    def __init__(
        self, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by expiry
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, response_id: str) -> bool:
        """Whether a response is still kept."""
        self._expire()
        return response_id in self._entries

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, in the place of an earlier state of it. One that is too large is not."""
        self._drop(stored.response.id)
        entry = _Entry(
            _encode(stored.response),
            _encode(stored.input_items),
            _encode(stored.messages),
            self._clock() + self._ttl_seconds,
        )
        if entry.size > self._max_bytes:
            return
        self._entries[stored.response.id] = entry
        self.num_bytes += entry.size
        self._expire()
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def response(self, response_id: str) -> Response:
        """A response that is still kept.

        Raises:
            RequestError: 404; it is not.
        """
        return _decode_response(self._get(response_id).response)

    def input_items(self, response_id: str) -> _Items:
        """What was asked for a response; raises as ``response`` does."""
        return _decode_items(self._get(response_id).input_items)

    def messages(self, response_id: str, field: str) -> list[ChatMessage]:
        """The conversation up to and with a response, which ``field`` of a request names.

        Raises:
            RequestError: 404 for the field.
        """
        return _decode_messages(self._get(response_id, field).messages)

    def delete(self, response_id: str) -> None:
        """Forget a response; raises as ``response`` does."""
        self._get(response_id)
        self._drop(response_id)

    def check(self) -> None:
        """Assert that the bytes add up and are within bounds."""
        assert self.num_bytes == sum(entry.size for entry in self._entries.values())
        assert self.num_bytes <= self._max_bytes

    def _get(self, response_id: str, field: str | None = None) -> _Entry:
        self._expire()
        entry = self._entries.get(response_id)
        if entry is None:
            message = f"response {response_id[:64]!r} does not exist, or is kept no longer"
            raise RequestError(404, message, param=field, code="response_not_found")
        return entry

    def _expire(self) -> None:
        now = self._clock()
        while self._entries:
            response_id, oldest = next(iter(self._entries.items()))
            if oldest.expires > now:
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self.num_bytes -= entry.size


def _encode(value: object) -> bytes:
    # A copy: the encoder's own has room to grow by half.
    return bytes(memoryview(_encoder.encode(value)))
