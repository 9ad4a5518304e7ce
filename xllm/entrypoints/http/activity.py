"""How many requests are being answered, and the moment when none is."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

# Scope key of the server's own send function: the hot path skips the middlewares' wrappers.
RAW_SEND = "xllm.send"


class Activity:
    """Counts requests from their headers to the last byte of their answers."""

    def __init__(self) -> None:
        self.num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request has begun."""
        self.num_active += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is answered."""
        self.num_active -= 1
        if not self.num_active:
            self._idle.set()

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Whether everything was answered within the time; 0 or less does not wait."""
        if not self.num_active:
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True


class ActivityMiddleware:
    """Outermost ASGI middleware: keeps an ``Activity`` and notes what the application's innermost
    needs: the server's send function, and the path prefix that a proxy may have left in place."""

    def __init__(self, app: ASGIApp, activity: Activity, root_path: str = "") -> None:
        self._app = app
        self._activity = activity
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request while it is answered."""
        self._activity.enter()
        scope[RAW_SEND] = send
        if self._root_path:
            scope["root_path"] = self._root_path
        try:
            await self._app(scope, receive, send)
        finally:
            self._activity.leave()
