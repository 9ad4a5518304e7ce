"""Advancing the matchers of a batch and asking them for masks: one library call each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xllm.core.grammar.compiler import explain, library
from xllm.core.utils.arrays import Int32Array

TOKENS_PER_WORD = 32
_MAX_THREADS = 16


def num_threads() -> int:
    """Threads that fill masks, and so lanes that a grammar can use.

    Three quarters of the processors where there are several: the server has its own work to do.
    """
    processors = len(os.sched_getaffinity(0))
    return min(processors, max(2, processors * 3 // 4), _MAX_THREADS)


class MaskFiller:
    """Runs batches of matchers on the library's threads, without the GIL.

    The threads split a batch into runs of neighbours: matchers of one lane should stand together.

    A mask has one bit per token, the lowest of its first word for token 0; set bits are allowed.

    Raises:
        GrammarError: the library is not installed.
    """

    def __init__(self) -> None:
        self._executor = library().LLExecutor(num_threads())

    def advance(self, steps: Sequence[tuple[Any, int]]) -> list[bool]:
        """Let each matcher take its next token; False for those that it refuses."""
        if not steps:
            return []
        taken: list[bool] = self._executor.consume_token_par(list(steps))
        return taken

    def fill(self, matchers: Sequence[tuple[Any, int]], masks: Int32Array) -> list[str | None]:
        """Write what each matcher allows next into its row of ``masks`` (N, W).

        Returns:
            Per matcher why it cannot go on, or None; the mask of one that cannot is meaningless.
        """
        assert masks.flags.c_contiguous
        if not matchers:
            return []
        self._executor.unsafe_compute_mask_ptr(
            list(matchers), masks.ctypes.data, masks.shape[1] * masks.itemsize, masks.shape[0]
        )
        return [explain(m) if m.is_error() else None for m, _ in matchers]
