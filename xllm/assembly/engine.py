"""Builds one engine: worker, scheduler and the loop that fits the device."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from xllm.assembly.resolve import fit_to_model
from xllm.control.engine import EngineLoop, Inbox, Outbox, OverlapEngineLoop
from xllm.control.scheduler import Scheduler, build_scheduler
from xllm.control.scheduler.build import fit_to_worker
from xllm.control.workers import WorkerPort
from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.grammar import GrammarCache, GrammarCompiler, GrammarError, num_threads
from xllm.core.messages.server import EngineProgress, EngineReady
from xllm.kv_cache.layout import CacheDemand, CacheGroup, WorkerInfo, max_concurrency


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """A started worker and the loop that drives it."""

    loop: EngineLoop | OverlapEngineLoop
    scheduler: Scheduler
    worker: WorkerPort
    ready: EngineReady


class PhaseTimer:
    """Seconds of each start-up phase, told apart by the progress messages that pass."""

    def __init__(self, on_progress: Callable[[EngineProgress], None]) -> None:
        self._on_progress = on_progress
        self._phase = ""
        self._began = time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str, fraction: float = -1.0) -> None:
        """``phase`` has begun or got further."""
        if phase != self._phase:
            self.finish()
            self._phase = phase
        self._on_progress(EngineProgress(phase, fraction))

    def finish(self) -> None:
        """The current phase has ended."""
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._began
        self._phase, self._began = "", now


def build_engine(
    config: XllmConfig,
    files: ModelFiles,
    inbox: Inbox,
    outbox: Outbox,
    on_progress: Callable[[EngineProgress], None],
) -> Engine:
    """Load the model and build its engine. Blocks until the first token can be made.

    Raises:
        ValueError: the model does not fit the configuration or the device.
    """
    timer = PhaseTimer(on_progress)
    timer("import libraries")
    # Imported here: a server process assembles clients without ever loading torch.
    from xllm.execution.worker import PoolingWorker, Worker

    config = fit_to_model(config, files)
    grammars: GrammarCache | None = None
    worker: Worker | PoolingWorker
    if files.pooling is None:
        # Called when a first grammar arrives, long after the worker has started.
        grammars = GrammarCache(
            lambda: _grammar_compiler(files, info.vocab_size), max_lanes=num_threads()
        )
        worker = Worker(config, files, timer, grammars)
    else:
        worker = PoolingWorker(config, files, timer)
    info = worker.start()
    timer.finish()
    scheduler = build_scheduler(config.scheduler, config.cache, info, grammars)
    task = "generate" if files.pooling is None else files.pooling.task
    ready = _describe(config, info, timer.seconds, task)
    overlap = config.scheduler.async_scheduling
    if overlap is None:
        overlap = info.async_device
    loop_class = OverlapEngineLoop if overlap else EngineLoop
    loop = loop_class(scheduler, worker, inbox, outbox, ready)
    return Engine(loop, scheduler, worker, ready)


def _grammar_compiler(files: ModelFiles, vocab_size: int) -> GrammarCompiler:
    """A compiler for the model's own vocabulary; an engine that meets no grammar loads none."""
    from xllm.assembly.text import load_vocabulary

    try:
        return GrammarCompiler(load_vocabulary(files, vocab_size))
    except GrammarError:
        raise
    except ValueError as error:  # no tokenizer, or one of another kind
        raise GrammarError(str(error)) from None


def _describe(
    config: XllmConfig, info: WorkerInfo, phases: dict[str, float], task: str
) -> EngineReady:
    demand = CacheDemand.of(fit_to_worker(config.scheduler, info), info.max_model_len)
    return EngineReady(
        model=config.model.api_name,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        num_kv_tokens=min(map(_num_tokens, _limiting_groups(info)), default=0),
        max_concurrency=max_concurrency(info.cache_groups, demand),
        phases=phases,
        task=task,
    )


def _limiting_groups(info: WorkerInfo) -> list[CacheGroup]:
    """Full-attention groups; sliding windows hold only a part of each sequence."""
    full = [group for group in info.cache_groups if group.spec.window is None]
    return full or list(info.cache_groups)


def _num_tokens(group: CacheGroup) -> int:
    return (group.num_blocks - 1) * group.spec.block_size
