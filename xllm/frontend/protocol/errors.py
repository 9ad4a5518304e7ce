"""Errors in the OpenAI shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import msgspec

_FIELD = re.compile(r"[a-z_][a-z0-9_]*(?=[ .:\[])")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


# Regular expressions for the beginnings of messages, and what stands there instead.
FieldNames = Sequence[tuple[str, str]]


class ErrorBody(msgspec.Struct):
    """What went wrong, for people (``message``) and programs (``type``, ``param``, ``code``)."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorResponse(msgspec.Struct):
    """Body of every error answer, and the last event of a stream that failed."""

    error: ErrorBody


class RequestError(Exception):
    """A request that cannot be served, with the HTTP status that says so.

    Args:
        status: HTTP status.
        message: one sentence; for a bad field it starts with the field's name.
        param: the field at fault.
        code: machine-readable cause, by default the status.
        type: OpenAI error type, by default the one that fits the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | int | None = None,
        type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = status if code is None else code
        fallback = "invalid_request_error" if status < 500 else "server_error"
        self.type = type or _TYPES.get(status, fallback)

    def body(self) -> ErrorResponse:
        """The answer's body."""
        return ErrorResponse(ErrorBody(self.message, self.type, self.param, self.code))

    @classmethod
    def bad_field(cls, field: str, problem: str) -> RequestError:
        """400 for one field: ``problem`` continues the sentence that the name begins."""
        return cls(400, f"{field} {problem}", param=field)

    @classmethod
    def deadline_exceeded(cls, deadline_ms: float | None) -> RequestError:
        """504 for a request that did not finish within the time that it gave itself."""
        message = f"the request did not finish within its deadline of {deadline_ms:g} ms"
        return cls(504, message, code="deadline_exceeded")

    def renamed(self, names: FieldNames) -> RequestError:
        """The same error in the words of an API that calls some fields by other names."""
        message = self.message
        for pattern, name in names:
            message = re.sub(f"^{pattern}", name, message)
        if message == self.message:
            return self
        field = _FIELD.match(message)
        return RequestError(self.status, message, field and field[0], self.code, self.type)

    @classmethod
    def from_value_error(cls, error: ValueError) -> RequestError:
        """400 from the house's ``ValueError``, whose message starts with the field's name."""
        message = str(error)
        field = _FIELD.match(message)
        return cls(400, message, param=field[0] if field else None)


@contextlib.contextmanager
def in_the_words_of(names: FieldNames) -> Iterator[None]:
    """Rename the fields of errors that come out of the block."""
    try:
        yield
    except RequestError as error:
        raise error.renamed(names) from None
