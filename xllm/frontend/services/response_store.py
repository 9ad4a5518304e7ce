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


@dataclasses.dataclass(slots=True)
class StoredResponse:
    """A response, what was asked for it, and the conversation up to and with it.

    ``messages`` leave out the instructions, which count for one response only.
    """

    response: Response
    input_items: Sequence[dict[str, Any]]
    messages: Sequence[ChatMessage]
    size: int = 0
    expires: float = 0.0


class ResponseStore:
    """Finds responses by id. The oldest go first when there are too many bytes.

    Ids are random: who knows one may read the response.

    Args:
        max_bytes: of all entries, as JSON.
        ttl_seconds: an entry's life since it was last put.
        clock: seconds.
    """

    def __init__(
        self, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()  # by expiry
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, response_id: str) -> bool:
        """Whether a response is still kept."""
        self._expire()
        return response_id in self._entries

    def put(self, entry: StoredResponse) -> None:
        """Keep a response, in the place of an earlier state of it. One that is too large is not."""
        self._drop(entry.response.id)
        parts = (entry.response, entry.input_items, entry.messages)
        entry.size = len(msgspec.json.encode(parts))
        entry.expires = self._clock() + self._ttl_seconds
        if entry.size > self._max_bytes:
            return
        self._entries[entry.response.id] = entry
        self.num_bytes += entry.size
        self._expire()
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def get(self, response_id: str, field: str | None = None) -> StoredResponse:
        """A response that is still kept.

        Raises:
            RequestError: 404; ``field`` is the request's field that named it.
        """
        self._expire()
        entry = self._entries.get(response_id)
        if entry is None:
            message = f"response {response_id[:64]!r} does not exist, or is kept no longer"
            raise RequestError(404, message, param=field, code="response_not_found")
        return entry

    def delete(self, response_id: str) -> None:
        """Forget a response; raises as ``get`` does."""
        self.get(response_id)
        self._drop(response_id)

    def check(self) -> None:
        """Assert that the bytes add up and are within bounds."""
        assert self.num_bytes == sum(entry.size for entry in self._entries.values())
        assert self.num_bytes <= self._max_bytes

    def _expire(self) -> None:
        now = self._clock()
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.expires > now:
                return
            self._drop(oldest.response.id)

    def _drop(self, response_id: str) -> None:
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self.num_bytes -= entry.size
