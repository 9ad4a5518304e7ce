"""Who may come in and how much they may bring."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request

from xllm.frontend.protocol.errors import RequestError

# Routes that answer without a key: what a load balancer asks, and the pages' static files, which
# are the same for everybody and ask for the key themselves. Everything else is denied.
PROBE_PATHS = frozenset({"/health", "/ready", "/ping"})
PUBLIC_PATHS = PROBE_PATHS | {"/", "/dashboard", "/web/{name:path}"}
# Sec-Fetch-Site of what a browser sends for a page that is not ours.
_OTHER_SITES = frozenset({"cross-site", "same-site"})
# Longest pause between two pieces of a request's body.
BODY_TIMEOUT_SECONDS = 30.0


class ApiKeys:
    """The accepted keys, as digests, compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._digests)

    def accepts(self, authorization: str | None) -> bool:
        """Whether an ``Authorization`` header opens the door; always, when no key is set."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        digest = hashlib.sha256(key.strip().encode(errors="surrogateescape")).digest()
        # No early exit: the time must not tell which key matched.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


def check_key(request: Request) -> None:
    """Let a request in whose route is public or whose key is right.

    Raises:
        RequestError: 401; 403 where no key keeps out the pages that somebody's browser visits.
    """
    if request.scope["route"].path in PUBLIC_PATHS:
        return
    keys: ApiKeys = request.app.state.api_keys
    if not keys and _from_other_site(request):
        raise RequestError(
            403,
            "pages of other sites may not use this server: name their origin in "
            "--allowed-origins or set --api-key",
        )
    if keys.accepts(request.headers.get("authorization")):
        return
    # How Anthropic's clients send it, at times beside a token that is for somebody else.
    key = request.headers.get("x-api-key")
    if key is None or not keys.accepts(f"Bearer {key}"):
        raise RequestError(401, "a valid API key is needed: Authorization: Bearer KEY")


def _from_other_site(request: Request) -> bool:
    """Whether a browser sends this for a page that nobody has allowed to.

    Browsers ask beforehand (CORS) only where a request is not such as a form could send; a text
    that happens to be JSON is, and would be obeyed though the page may not read the answer.
    """
    headers = request.headers
    if request.method in ("GET", "HEAD") or headers.get("sec-fetch-site") not in _OTHER_SITES:
        return False
    allowed = request.app.state.config.allowed_origins
    return "*" not in allowed and headers.get("origin") not in allowed


async def read_body(
    request: Request, max_bytes: int, timeout_seconds: float | None = None
) -> bytes:
    """The request body, refused as soon as it is known to be too large.

    Args:
        request: whose body nobody has read.
        max_bytes: its largest size.
        timeout_seconds: for all of it, however steadily its pieces come; None for no limit.

    Raises:
        RequestError: 413 above ``max_bytes``, 408 when the client stalls or takes too long, 415
            for a body that is encoded.
    """
    for coding in request.headers.getlist("content-encoding"):
        if coding.strip().lower() not in ("", "identity"):
            raise RequestError(
                415, f"Content-Encoding must be identity, got {coding[:64]!r}: send the body plain"
            )
    too_large = RequestError(413, f"the request body is larger than {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                # Not wait_for: before Python 3.12 it returns what has just come in place of being
                # cancelled, and the outer timeout would never end this.
                async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                    message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RequestError(408, "the request body did not arrive in time") from None


def cors_options(origins: Sequence[str]) -> dict[str, Any]:
    """Arguments of the CORS middleware: only the origins named, no cookies.

    Any header may be sent: clients made for browsers tell of themselves in a dozen of their own.
    """
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "POST", "DELETE"],
        "allow_headers": ["*"],
        "expose_headers": ["Retry-After"],
        "max_age": 600,
    }
