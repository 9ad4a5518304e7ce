"""Compiling a request's grammar before the engine sees it, without holding anything up."""

from __future__ import annotations

import asyncio

from xllm.core.grammar import GrammarCache
from xllm.core.request.structured import StructuredOutput
from xllm.frontend.protocol.errors import RequestError

MAX_COMPILE_SECONDS = 10.0


class GrammarCheck:
    """Refuses grammars that do not compile, or not in time.

    Args:
        cache: compiles, with the vocabulary that the engine uses.
    """

    def __init__(self, cache: GrammarCache) -> None:
        self._cache = cache

    async def check(self, output: StructuredOutput | None, field: str) -> None:
        """Check a request's grammar; None passes.

        Args:
            field: what to blame in an error.

        Raises:
            RequestError: 400 for a grammar that cannot be enforced or takes too long to compile,
                503 if it did not get its turn in that time.
        """
        if output is None:
            return
        compilation = self._cache.submit(output)
        # One that takes too long goes on in its thread: whoever sends it again is told at once.
        seconds = max(0.0, MAX_COMPILE_SECONDS - compilation.running_seconds)
        if not compilation.future.done():
            await asyncio.wait([asyncio.wrap_future(compilation.future)], timeout=seconds)
        if not compilation.future.done():
            raise _too_slow(field, compilation.running_seconds > 0.0)
        if compilation.error is not None:
            raise RequestError.bad_field(field, f"was refused: {compilation.error}")


def _too_slow(field: str, began: bool) -> RequestError:
    if not began:
        return RequestError(503, "the grammar compilers are busy; try again later")
    return RequestError.bad_field(
        field, f"takes longer than {MAX_COMPILE_SECONDS:g} seconds to compile; simplify it"
    )
