"""An engine whose every output a test dictates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xllm.core.messages.server import (
    EngineReady,
    EngineStats,
    Failure,
    LogprobColumns,
    OutputBatch,
    PromptLogprobs,
    Started,
)
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.frontend.services.answers.engine_client import OutputSink

# (handle, choice, token ids, finish, stop token)
Row = tuple[int, int, Sequence[int], FinishReason, int]


def row(
    handle: int,
    tokens: Sequence[int] = (),
    finish: FinishReason = FinishReason.NONE,
    *,
    choice: int = 0,
    stop_token: int = -1,
) -> Row:
    """One sequence's part of a step."""
    return (handle, choice, tokens, finish, stop_token)


def batch(
    *rows: Row,
    logprobs: int | None = None,
    prompt_logprobs: Sequence[PromptLogprobs] = (),
    started: Sequence[Started] = (),
    failures: Sequence[Failure] = (),
) -> OutputBatch:
    """An output batch of these rows.

    With ``logprobs=k`` every token ``t`` at flat position ``p`` has logprob ``-t/1000`` and the
    alternatives ``t+1 .. t+k`` with ``-(p+1)/100`` each.
    """
    tokens = [t for r in rows for t in r[2]]
    columns = None
    if logprobs is not None and tokens:
        width = logprobs + 1
        columns = LogprobColumns(
            entries=np.arange(len(tokens), dtype=np.int32),
            counts=np.full(len(tokens), logprobs, np.int32),
            token_ids=np.array([[t + j for j in range(width)] for t in tokens], np.int32),
            logprobs=np.array(
                [[-t / 1000] + [-(p + 1) / 100] * logprobs for p, t in enumerate(tokens)],
                np.float32,
            ),
            ranks=np.ones(len(tokens), np.int32),
        )
    return OutputBatch(
        handles=np.array([r[0] for r in rows], np.int64),
        choices=np.array([r[1] for r in rows], np.int32),
        counts=np.array([len(r[2]) for r in rows], np.int32),
        token_ids=np.array(tokens, np.int32),
        finish=np.array([r[3] for r in rows], np.int8),
        stop_tokens=np.array([r[4] for r in rows], np.int32),
        logprobs=columns,
        prompt_logprobs=list(prompt_logprobs),
        started=list(started),
        failures=list(failures),
    )


class FakeEngineClient:
    """An ``EngineClient`` that records what it is told and delivers what a test sends."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.aborted: list[tuple[int, int, bool]] = []
        self.begun: list[int] = []
        self.ended: list[tuple[int, str]] = []
        self.refusal: Exception | None = None
        self.ready: EngineReady | None = EngineReady(
            model="tiny", max_model_len=64, vocab_size=300, num_kv_tokens=640, max_concurrency=10.0
        )
        self.stats = EngineStats()
        self.healthy = True
        self._sink: OutputSink | None = None

    def connect(self, sink: OutputSink) -> None:
        self._sink = sink

    def add(self, requests: Sequence[Request]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.extend(requests)

    def begin(self, requests: Sequence[Request]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.begun += [request.handle for request in requests]

    def end(self, requests: Sequence[Request], reasons: Sequence[str]) -> None:
        self.ended += [(r.handle, reason) for r, reason in zip(requests, reasons, strict=True)]

    def abort(self, handles: Sequence[int], choices: Sequence[int], stopped: bool = False) -> None:
        self.aborted += [(h, c, stopped) for h, c in zip(handles, choices, strict=True)]

    def deliver(self, *rows: Row, **columns: object) -> None:
        """Send one step's outputs."""
        assert self._sink is not None
        self._sink.deliver(batch(*rows, **columns))  # type: ignore[arg-type]

    def die(self, message: str) -> None:
        """Report the engine's death."""
        assert self._sink is not None
        self._sink.fail(message)
