"""How an API words its errors and frames its event streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import Scope

from xllm.frontend.protocol.errors import RequestError

_json = msgspec.json.Encoder().encode
_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")
_ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """One API's framing.

    ``error`` makes the body of an error answer, ``event_error`` the last event of a stream that
    failed. Where ``named_events`` is set, every event says its name (its ``type``) on a line of
    its own and the stream just ends; elsewhere it ends with ``[DONE]``.
    """

    error: Callable[[RequestError], Any]
    event_error: Callable[[RequestError], Any]
    named_events: bool = False

    def events(self, chunks: list[Any]) -> bytes:
        """The wire form of chunks that arrived together, in one piece."""
        if not self.named_events:
            return b"".join([b"data: " + _encode(chunk) + b"\n\n" for chunk in chunks])
        return b"".join(
            [b"event: " + _name(chunk) + b"\ndata: " + _encode(chunk) + b"\n\n" for chunk in chunks]
        )

    @property
    def end(self) -> bytes:
        """What follows the last event of a stream that went well."""
        return b"" if self.named_events else b"data: [DONE]\n\n"


def _encode(chunk: Any) -> bytes:
    """JSON on one line, for whatever counts as the end of one.

    Clients that cut decoded text into lines may end one at U+0085, U+2028 and U+2029 too (Python's
    ``str.splitlines``, and with it ``httpx.Response.iter_lines``), so these are escaped.
    """
    text = _json(chunk)
    if b"\xe2\x80" in text or b"\xc2\x85" in text:  # never but inside of a JSON string
        for raw, escaped in _LINE_ENDS:
            text = text.replace(raw, escaped)
    return text


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of the route that a request has matched."""
    path = getattr(scope.get("route"), "path", "")
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return RESPONSES if path.startswith("/v1/responses") else OPENAI


def _name(chunk: Any) -> bytes:
    name: str = chunk["type"] if isinstance(chunk, dict) else type(chunk).__struct_config__.tag
    return name.encode()


def _anthropic_error(error: RequestError) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, error.type)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _responses_event_error(error: RequestError) -> dict[str, Any]:
    return {
        "type": "error",
        "code": str(error.code),
        "message": error.message,
        "param": error.param,
        "sequence_number": -1,  # it comes from outside the stream that counts
    }


OPENAI = Dialect(RequestError.body, RequestError.body)
RESPONSES = Dialect(RequestError.body, _responses_event_error, named_events=True)
ANTHROPIC = Dialect(_anthropic_error, _anthropic_error, named_events=True)
