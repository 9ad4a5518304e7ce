"""Routes of the API: what a module of ``routes`` declares."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from xllm.entrypoints.http.security import check_key

Endpoint = Callable[[Request], Awaitable[Response]]
Declare = Callable[[Endpoint], Endpoint]


class ApiRoute(Route):
    """A route whose callers need the key, unless its path is public.

    Args:
        path: as Starlette writes it, with ``{name}`` for a part that varies.
        endpoint: answers; its documentation's first line describes the route.
        methods: HTTP methods.
        body: the type that request bodies are decoded to.
        documented: whether the OpenAPI document names it.
    """

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        methods: Sequence[str],
        *,
        body: type | None = None,
        documented: bool = True,
    ) -> None:
        @functools.wraps(endpoint)
        async def answer(request: Request) -> Response:
            check_key(request)
            return await endpoint(request)

        super().__init__(path, answer, methods=methods, include_in_schema=documented)
        self.methods = set(methods)  # Starlette would add HEAD, and a GET may have an effect
        self.body = body


class ApiRouter:
    """Collects the routes of a module.

    Args:
        documented: whether the OpenAPI document names them.
    """

    def __init__(self, *, documented: bool = True) -> None:
        self.routes: list[ApiRoute] = []
        self._documented = documented

    def add(
        self, path: str, endpoint: Endpoint, methods: Sequence[str], body: type | None = None
    ) -> None:
        """Declare a route; see ``ApiRoute``."""
        route = ApiRoute(path, endpoint, methods, body=body, documented=self._documented)
        self.routes.append(route)

    def get(self, path: str, *, head: bool = False) -> Declare:
        """Decorator of what answers GET, and HEAD if asked to."""
        return self._declare(path, ["GET", "HEAD"] if head else ["GET"])

    def post(self, path: str, body: type | None = None) -> Declare:
        """Decorator of what answers POST."""
        return self._declare(path, ["POST"], body)

    def delete(self, path: str) -> Declare:
        """Decorator of what answers DELETE."""
        return self._declare(path, ["DELETE"])

    def _declare(self, path: str, methods: Sequence[str], body: type | None = None) -> Declare:
        def declare(endpoint: Endpoint) -> Endpoint:
            self.add(path, endpoint, methods, body)
            return endpoint

        return declare
