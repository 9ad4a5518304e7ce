"""Compiling a request's grammar before the engine sees it, without holding anything up."""

from __future__ import annotations

import asyncio
import math
import time

from xllm.core.grammar import GrammarCache
from xllm.core.request.request import Request
from xllm.frontend.protocol.errors import RequestError

MAX_COMPILE_SECONDS = 10.0


class GrammarCheck:
    """Refuses grammars that do not compile, or not in time.

    Args:
        cache: compiles, with the vocabulary that the engine uses.
    """

    def __init__(self, cache: GrammarCache) -> None:
        self._cache = cache

    async def check(self, request: Request, field: str) -> None:
        """Check a request's grammar; one without passes.

        Args:
            request: as it will be sent to the engine.
            field: what to blame in an error.

        Raises:
            RequestError: 400 for a grammar that cannot be enforced or takes too long to compile,
                503 if it did not get its turn in that time, 504 past the request's deadline.
        """
        if request.structured_output is None:
            return
        compilation = self._cache.submit(request.structured_output)
        # One that takes too long goes on in its thread: whoever sends it again is told at once.
        seconds = max(0.0, MAX_COMPILE_SECONDS - compilation.running_seconds)
        left = math.inf if request.deadline is None else request.deadline - time.monotonic()
        if not compilation.future.done():
            waited = [asyncio.wrap_future(compilation.future)]
            await asyncio.wait(waited, timeout=max(0.0, min(seconds, left)))
        if not compilation.future.done():
            if left < seconds:
                raise RequestError.deadline_exceeded(request.targets.deadline_ms)
            raise _too_slow(field, compilation.running_seconds > 0.0)
        if compilation.error is not None:
            raise RequestError.bad_field(field, f"was refused: {compilation.error}")


def _too_slow(field: str, began: bool) -> RequestError:
    if not began:
        return RequestError(503, "the grammar compilers are busy; try again later")
    return RequestError.bad_field(
        field, f"takes longer than {MAX_COMPILE_SECONDS:g} seconds to compile; simplify it"
    )
