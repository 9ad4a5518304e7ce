"""One step's columns to the answers they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from xllm.core.messages.server import Failure, OutputBatch, PooledColumns
from xllm.core.observability.logging import get_logger
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.frontend.output.answer import GRAMMAR_FIELD, AnswerState
from xllm.frontend.output.logprobs import entries_by_position
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.text.tokenizer import Tokenizer

logger = get_logger(__name__)

_FINISH = tuple(FinishReason)


@dataclasses.dataclass(slots=True)
class Processed:
    """What a batch changed.

    ``stopped`` are (handle, choice) that a stop string ended; ``failed`` are handles whose request
    failed here. The engine still computes both and must be told to stop.
    """

    touched: list[AnswerState] = dataclasses.field(default_factory=list)
    stopped: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    failed: list[int] = dataclasses.field(default_factory=list)


class OutputProcessor:
    """Keeps the open answers and advances them by ``OutputBatch``. Synchronous, one thread.

    Offline use: ``add`` each request, ``process`` each batch of the engine, then read the
    ``AnswerState`` that ``add`` returned; pass ``stopped`` and ``failed`` to the engine's abort.

    Args:
        tokenizer: the model's.
        eos_token_ids: ids that end a text without being reported as the stop reason.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: dict[int, AnswerState] = {}

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return len(self._open)

    def add(
        self,
        request: Request,
        *,
        keep_entries: bool = False,
        token_table: Sequence[bytes] | None = None,
        grammar_field: str = GRAMMAR_FIELD,
    ) -> AnswerState:
        """Expect outputs for a request.

        Args:
            request: as it is sent to the engine.
            keep_entries: deltas carry token ids even without logprobs.
            token_table: bytes of every token, if not the tokenizer's own.
            grammar_field: what errors of its grammar blame.
        """
        assert request.handle not in self._open
        state = AnswerState(
            request,
            self._tokenizer,
            eos_token_ids=self._eos_token_ids,
            keep_entries=keep_entries,
            token_table=token_table,
            grammar_field=grammar_field,
        )
        self._open[request.handle] = state
        return state

    def discard(self, handle: int) -> bool:
        """Forget an answer that nobody will read; False if it had ended already."""
        return self._open.pop(handle, None) is not None

    def process(self, batch: OutputBatch) -> Processed:
        """Advance the answers. Outputs for unknown handles (cancelled ones) are ignored.

        An exception while one answer advances fails that answer alone.
        """
        done = Processed()
        touched: dict[int, AnswerState] = {}
        for started in batch.started:
            state = self._open.get(started.handle)
            if state is not None and started.choice == 0:
                state.num_cached_tokens = started.num_cached_tokens
                state.queue_seconds = started.queue_seconds
        if batch.pooled is not None:
            self._take_pooled(batch.pooled, touched)
        for part in batch.prompt_logprobs:
            if (state := self._open.get(part.handle)) is not None:
                state.add_prompt_logprobs(part)
        for failure in batch.failures:
            self._fail(failure, touched, done)
        self._advance(batch, touched, done)
        for handle, state in touched.items():
            if state.finished:
                self._open.pop(handle, None)
        done.touched = list(touched.values())
        return done

    def fail_all(self, message: str) -> list[AnswerState]:
        """End every open answer with a 503: the engine is gone."""
        states = list(self._open.values())
        self._open.clear()
        for state in states:
            state.fail(RequestError(503, message))
        return states

    def check(self) -> None:
        """Assert that only unfinished answers are kept."""
        for handle, state in self._open.items():
            assert state.request.handle == handle
            assert not state.finished

    def _advance(
        self, batch: OutputBatch, touched: dict[int, AnswerState], done: Processed
    ) -> None:
        token_ids = batch.token_ids.tolist()
        entries = entries_by_position(batch.logprobs) if batch.logprobs is not None else None
        rows = zip(
            batch.handles.tolist(),
            batch.choices.tolist(),
            batch.counts.tolist(),
            batch.finish.tolist(),
            batch.stop_tokens.tolist(),
            strict=True,
        )
        position = 0
        for handle, index, count, finish, stop_token in rows:
            start, position = position, position + count
            state = self._open.get(handle)
            if state is None or state.choices[index].finish:
                continue
            touched[handle] = state
            own = None
            if entries is not None and start in entries:
                own = [entries[i] for i in range(start, position)]
            try:
                tokens = token_ids[start:position]
                if state.push(index, tokens, own, _FINISH[finish], stop_token):
                    done.stopped.append((handle, index))
                if finish == FinishReason.ERROR:
                    state.fail(RequestError(500, "the sequence failed in the engine"))
            except Exception:
                logger.exception("request %s: its output failed", state.request.request_id)
                state.fail(RequestError(500, "internal error while the answer was processed"))
                done.failed.append(handle)

    def _take_pooled(self, pooled: PooledColumns, touched: dict[int, AnswerState]) -> None:
        broken = set(np.flatnonzero(~np.isfinite(pooled.values).all(axis=1)).tolist())
        for row, handle in enumerate(pooled.handles.tolist()):
            state = self._open.get(handle)
            if state is None:
                continue
            if row in broken:
                state.fail(RequestError(500, "the model's vector for this input is not finite"))
                touched[handle] = state
            else:
                state.pooled = pooled.values[row]

    def _fail(self, failure: Failure, touched: dict[int, AnswerState], done: Processed) -> None:
        state = self._open.get(failure.handle)
        if state is None or state.finished:
            return
        touched[failure.handle] = state
        if failure.choice >= 0 and len(state.choices) > 1:
            done.failed.append(failure.handle)  # the other choices still run
        error = RequestError(failure.status, failure.message, param=failure.param)
        state.fail(error.renamed([(GRAMMAR_FIELD, state.grammar_field)]))
