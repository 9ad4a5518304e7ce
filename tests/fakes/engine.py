"""An engine around the fake worker, driven step by step, that collects what clients would see."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fakes.model import ReferenceModel
from tests.fakes.worker import FakeWorker, make_groups
from xllm.control.engine import EngineLoop, OverlapEngineLoop
from xllm.control.scheduler import Scheduler, build_scheduler
from xllm.control.scheduler.budget import StepDraft, TokenBudget
from xllm.core.config import CacheConfig, SchedulerConfig
from xllm.core.messages.engine import ToEngine
from xllm.core.messages.server import (
    EngineReady,
    Failure,
    OutputBatch,
    PromptLogprobs,
    Started,
    ToServer,
)
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.kv_cache.layout import CacheDemand, capacity_tokens


def make_request(
    handle: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    stop_token_ids: tuple[int, ...] = (),
    seed: int = 0,
    priority: int = 0,
    cache_salt: str | None = None,
    **params: Any,
) -> Request:
    """A request with the fields that matter to the engine."""
    return Request(
        handle=handle,
        request_id=f"r{handle}",
        prompt_token_ids=np.array(prompt, np.int32),
        params=SamplingParams(max_tokens=None, **params),
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        seed=seed,
        priority=priority,
        cache_salt=cache_salt,
    )


def preempt(scheduler: Scheduler, handle: int, choice: int = 0) -> bool:
    """Preempt a sequence between two steps unless it ends anyway; whether it was."""
    state = scheduler._state
    entry = state.requests.get(handle)
    sequence = entry.live.get(choice) if entry else None
    if sequence is None or sequence.row not in state.table.preemptible():
        return False
    scheduler._preemption.preempt(StepDraft(TokenBudget(0)), sequence)
    return True


class NothingMoreError(Exception):
    """The loop would wait for ever: what a test had for it is done."""


class ListInbox:
    """Hands out what a test put in; never waits."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    def receive(self, timeout_seconds: float | None) -> list[ToEngine]:
        """Everything at once.

        Raises:
            NothingMoreError: there is nothing, and the loop would wait for it.
        """
        if timeout_seconds is None and not self.messages:
            raise NothingMoreError
        messages, self.messages = self.messages, []
        return messages


class ListOutbox:
    """Keeps what the engine sends."""

    def __init__(self) -> None:
        self.messages: list[ToServer] = []

    def send(self, message: ToServer) -> None:
        """Keep."""
        self.messages.append(message)


@dataclasses.dataclass
class Answer:
    """What the client of one sequence has seen."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    finish: FinishReason = FinishReason.NONE
    stop_token: int = -1
    failure: Failure | None = None
    started: Started | None = None


class Client:
    """Collects what clients would see of an engine's outputs."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int], Answer] = {}  # by (handle, choice)
        self.prompt_logprobs: dict[int, list[PromptLogprobs]] = {}
        self.refusals: dict[int, Failure] = {}

    def open(self, request: Request) -> None:
        """Expect an answer of every choice."""
        for choice in range(request.params.n):
            self.answers[request.handle, choice] = Answer()

    def take(self, batch: OutputBatch) -> None:
        """What a step brought."""
        for started in batch.started:
            answer = self.answers[started.handle, started.choice]
            assert answer.started is None, "started twice"
            answer.started = started
        offset, owners = 0, []
        assert len(batch.handles) == len(batch.choices) == len(batch.counts)
        assert len(batch.handles) == len(batch.finish) == len(batch.stop_tokens)
        for index, count in enumerate(batch.counts.tolist()):
            answer = self.answers[int(batch.handles[index]), int(batch.choices[index])]
            assert answer.finish is FinishReason.NONE, "output after the end"
            answer.tokens += batch.token_ids[offset : offset + count].tolist()
            owners += [answer] * count
            offset += count
            answer.finish = FinishReason(int(batch.finish[index]))
            answer.stop_token = int(batch.stop_tokens[index])
        assert offset == len(batch.token_ids)
        if batch.logprobs is not None:
            for place, entry in enumerate(batch.logprobs.entries.tolist()):
                assert batch.logprobs.token_ids[place, 0] == batch.token_ids[entry]
                owners[entry].logprobs.append(float(batch.logprobs.logprobs[place, 0]))
        for entries in batch.prompt_logprobs:
            self.prompt_logprobs.setdefault(entries.handle, []).append(entries)
        for failure in batch.failures:
            if failure.choice == -1:
                self.refusals[failure.handle] = failure
            else:
                self.answers[failure.handle, failure.choice].failure = failure


class FakeEngine(Client):
    """Scheduler, fake worker and one of the two loops.

    Args:
        num_blocks: usable blocks per cache group.
        windows: one cache group each; None is full attention.
        worker: keyword arguments of ``FakeWorker``.
        config: keyword arguments of ``SchedulerConfig``.
    """

    def __init__(
        self,
        num_blocks: int | Sequence[int] = 64,
        *,
        block_size: int = 4,
        windows: Sequence[int | None] = (None,),
        overlap: bool = False,
        max_model_len: int = 256,
        vocab_size: int = 1000,
        enable_prefix_caching: bool = True,
        worker: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        super().__init__()
        config = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **config}
        groups = make_groups(num_blocks, block_size, windows)
        self.worker = FakeWorker(groups, vocab_size, max_model_len, **(worker or {}))
        self.reference = ReferenceModel(windows, vocab_size)
        self.scheduler = build_scheduler(
            SchedulerConfig(**config),
            CacheConfig(enable_prefix_caching=enable_prefix_caching),
            self.worker.start(),
        )
        demand = CacheDemand.of(SchedulerConfig(**config), max_model_len)
        self.capacity_tokens = capacity_tokens(groups, demand)
        self.inbox, self.outbox = ListInbox(), ListOutbox()
        loop = OverlapEngineLoop if overlap else EngineLoop
        ready = EngineReady("fake", max_model_len, vocab_size, 0, 0.0)
        self.loop = loop(self.scheduler, self.worker, self.inbox, self.outbox, ready)
        self.num_steps = 0

    def add(self, request: Request) -> None:
        """Submit a request."""
        self.open(request)
        self.loop.submit(request)

    def step(self) -> None:
        """One step of the loop, then ``check``."""
        for message in self.loop.step():
            assert isinstance(message, OutputBatch)
            self.take(message)
        self.loop.check()
        self.num_steps += 1

    def run(self, max_steps: int = 2000) -> None:
        """Step until idle, within ``max_steps``."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, f"still busy after {max_steps} steps"
        self.step()  # refusals and aborts that no step has told

    def serve(self, *messages: ToEngine) -> None:
        """Let the loop itself receive messages and run until it would wait for more."""
        self.inbox.messages += messages
        with contextlib.suppress(NothingMoreError):
            self.loop.run()

    def ask(self, request: Request) -> Answer:
        """Submit, run to the end, and return the answer of choice 0."""
        self.add(request)
        self.run()
        return self.answers[request.handle, 0]

    def expect(self, request: Request, choice: int = 0) -> list[int]:
        """The tokens that a solo run of the request gives."""
        return self.reference.generate(
            request.prompt_token_ids.tolist(),
            request.max_tokens,
            seed=request.seed + choice,
            stop_token_ids=request.stop_token_ids,
            min_tokens=request.params.min_tokens,
        )

    def preempt(self, handle: int, choice: int = 0) -> bool:
        """See the function."""
        return preempt(self.scheduler, handle, choice)
