"""Messages to a server process: token traffic is columnar, one array per field per step."""

from __future__ import annotations

import msgspec

from xllm.core.messages.worker import WorkerStats
from xllm.core.utils.arrays import Float32Array, Int8Array, Int32Array, Int64Array


class LogprobColumns(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of those entries of a batch that asked for them.

    ``entries[i]`` is the index into the batch's flat ``token_ids``. Column 0 of row ``i`` is the
    token itself, columns ``1..counts[i]`` its best alternatives, best first; the rest is padding.
    """

    entries: Int32Array  # (L,)
    counts: Int32Array  # (L,) alternatives that row i asked for
    token_ids: Int32Array  # (L, K+1)
    logprobs: Float32Array  # (L, K+1)
    ranks: Int32Array  # (L,) 1 = most likely


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of prompt tokens ``start ..`` of one request (the first token of all has none)."""

    handle: int
    start: int
    token_ids: Int32Array  # (P, K+1), column 0 is the prompt token itself
    logprobs: Float32Array  # (P, K+1)
    ranks: Int32Array  # (P,)


class PooledColumns(msgspec.Struct, frozen=True, array_like=True):
    """The raw vectors of requests that a pooling model answered with this step."""

    handles: Int64Array  # (R,)
    values: Float32Array  # (R, D)


class Started(msgspec.Struct, frozen=True, array_like=True):
    """Facts known once a sequence was first scheduled."""

    handle: int
    choice: int
    num_cached_tokens: int
    queue_seconds: float


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A sequence was refused or quarantined. ``status`` is the HTTP status that fits."""

    handle: int
    choice: int  # -1: every choice
    message: str
    status: int = 500
    param: str | None = None


class OutputBatch(msgspec.Struct, frozen=True, tag="out"):
    """What one step brought. Entry ``i`` is sequence ``(handles[i], choices[i])``.

    Its tokens are the next ``counts[i]`` of the flat ``token_ids``; ``finish[i]`` is a
    ``FinishReason``; ``stop_tokens[i]`` is the stop token id that ended it, or -1. A stop token is
    part of ``token_ids``. An entry may finish without a token (abort, scoring, pooling).
    """

    handles: Int64Array
    choices: Int32Array
    counts: Int32Array
    token_ids: Int32Array
    finish: Int8Array
    stop_tokens: Int32Array
    logprobs: LogprobColumns | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    started: list[Started] = []
    failures: list[Failure] = []
    pooled: PooledColumns | None = None


class EngineStats(msgspec.Struct, frozen=True, tag="stats"):
    """Gauges now and counters since start; sent at most a few times a second and when idle."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # 0..1 of the blocks, cached-but-unused blocks count as free
    num_steps: int = 0
    num_preemptions: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    prompt_tokens: int = 0  # computed or found
    generation_tokens: int = 0
    step_seconds: float = 0.0  # wall time inside steps
    idle: bool = True
    worker: WorkerStats = WorkerStats()


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The engine can make its first token. Sent once loaded and to every ``Hello``."""

    model: str
    max_model_len: int
    vocab_size: int  # real vocabulary, padding excluded
    num_kv_tokens: int
    max_concurrency: float  # sequences of max_model_len that fit at once
    phases: dict[str, float] = {}  # start-up phase -> seconds
    task: str = "generate"  # or "embed", "classify"


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter"):
    """How loading an adapter went: the number that requests name it by, or the error."""

    name: str
    adapter: int
    error: str | None = None


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """The trace that a profile began or ended with, or why it did not."""

    path: str
    error: str | None = None


class EngineProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Start-up progress for people: a phase name and 0..1, or -1 when unknown."""

    phase: str
    fraction: float = -1.0


class EngineDead(msgspec.Struct, frozen=True, tag="dead"):
    """The engine is about to exit and says why."""

    message: str


ToServer = (
    OutputBatch | EngineStats | EngineReady | EngineProgress | EngineDead | AdapterLoaded | Profiled
)
