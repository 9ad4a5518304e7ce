"""Random life in a whole engine with a tiny real model, for as long as you like.

    python -m tests.soak.engine --minutes 10 [--seed N]

Random engines (full and sliding-window caches, both loops, both policies, tight caches, small
steps) get random requests: drawn and greedy, penalized, constrained, scored, with adapters, with
several choices. They are aborted, preempted, some of their steps raise, and adapters come and go.
After every step all invariants are checked, and every answer is compared with that of an engine
that had nothing else to do. Prints the number of steps, and on a failure the seed that repeats it.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.torch import load_file

from tests.contract.equivalence.test_adapters import write_adapter
from tests.contract.equivalence.test_grammars import GRAMMARS, new_cache
from tests.contract.equivalence.test_thoughts import OUTPUTS
from tests.contract.equivalence.tiny_engine import (
    CONFIGS,
    EOS,
    MAX_LEN,
    TinyEngine,
    write_checkpoint,
)
from tests.fakes.engine import Answer, Client, preempt
from tests.soak.runner import soak
from xllm.core.config.files import ModelFiles
from xllm.core.messages.worker import StepPlan
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams

NUM_ADAPTERS = 2
FORMS = [*GRAMMARS.values(), *OUTPUTS.values()]
_TOLERANCE = 2e-3  # of logprobs: sums of float32 in another order


@dataclasses.dataclass(frozen=True)
class Model:
    """A checkpoint, adapters for it, and the engine that answers one request at a time."""

    files: ModelFiles
    adapters: list[Path]
    alone: TinyEngine
    known: dict[bytes, tuple[Answer, list[float]]] = dataclasses.field(default_factory=dict)

    @classmethod
    def make(cls, family: str, folder: Path) -> Model:
        files = write_checkpoint(folder, family)
        base = load_file(files.weights[0])
        adapters = [write_adapter(folder / str(i), base, i, 3 + i) for i in range(NUM_ADAPTERS)]
        alone = TinyEngine(
            files, prefix_caching=False, grammars=new_cache(), max_loras=NUM_ADAPTERS
        )
        for path in adapters:  # numbers 1, 2, ...
            assert alone.loop.load_adapter(path.name, str(path)).error is None
        return cls(files, adapters, alone)

    def expect(self, request: Request, choice: int) -> tuple[Answer, list[float]]:
        """The answer of one choice, and the logprobs of the prompt's tokens from its second on."""
        params = msgspec.structs.replace(request.params, n=1)
        lone = msgspec.structs.replace(
            request, handle=0, request_id="", priority=0, params=params, seed=request.seed + choice
        )
        key = msgspec.msgpack.encode(
            msgspec.structs.replace(lone, prompt_token_ids=lone.prompt_token_ids.tolist())
        )
        if key not in self.known:
            client = Client()
            client.open(lone)
            self.alone.loop.submit(lone)
            while self.alone.scheduler.has_work:
                for batch in self.alone.loop.step():
                    client.take(batch)
            scores = [
                score
                for part in client.prompt_logprobs.get(0, [])
                for score in part.logprobs[:, 0].tolist()
            ]
            self.known[key] = (client.answers[0, 0], scores)
        return self.known[key]


class _Raises:
    """A step whose result never comes."""

    def __init__(self, pending: Any) -> None:
        self._pending = pending

    def result(self) -> Any:
        self._pending.result()
        raise RuntimeError("injected")


class RandomLife:
    """One random engine and what happens to it.

    Args:
        seed: decides everything.
        models: by family; made where missing.
    """

    def __init__(self, seed: int, models: dict[str, Model], folder: Path) -> None:
        self._random = draw = random.Random(seed)
        family = draw.choice([*CONFIGS])
        if family not in models:
            (folder / family).mkdir()
            models[family] = Model.make(family, folder / family)
        self._model = models[family]
        self.options: dict[str, Any] = {
            "overlap": draw.random() < 0.6,
            "prefix_caching": draw.random() < 0.7,
            "step_tokens": draw.choice([1, 5, 8, 16, 32, 512]),
            "num_kv_tokens": int(MAX_LEN * draw.choice([0.5, 1, 1.25, 1.5, 2, 16])),
            "max_rows": draw.choice([1, 3, 4, 8, 16]),
            "scheduling": draw.choice(["decode_first", "prefill_first"]),
            "priority_policy": draw.choice(["fcfs", "priority"]),
            "enable_chunked_prefill": draw.random() < 0.8,
            "full_step": draw.choice([0, 0, 8, 16]),
        }
        self.engine = TinyEngine(
            self._model.files, grammars=new_cache(), max_loras=NUM_ADAPTERS, **self.options
        )
        self._numbers = {0: 0}  # of every adapter that was ever loaded: that of the lone engine
        self._loaded = [0] * NUM_ADAPTERS  # their numbers now; 0: not loaded
        self._reload_adapters()
        self._raise_in = {draw.randrange(5, 150) for _ in range(draw.choice([0, 0, 3]))}
        self._execute = self.engine.worker.execute
        self.engine.worker.execute = self._execute_or_raise  # type: ignore[method-assign]
        self._client = Client()
        self.requests: dict[int, Request] = {}
        self._aborted: set[tuple[int, int]] = set()
        self._stems = [self._tokens(draw.randrange(1, 90)) for _ in range(3)]
        self.num_steps = 0

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(EOS) for _ in range(count)]

    def _reload_adapters(self) -> None:
        """Load what is not loaded, as far as there is room."""
        for index, path in enumerate(self._model.adapters):
            if not self._loaded[index]:
                number = self.engine.loop.load_adapter(path.name, str(path)).adapter
                self._loaded[index] = number
                self._numbers.setdefault(number, index + 1)

    def _execute_or_raise(self, plan: StepPlan) -> Any:
        if plan.step_id not in self._raise_in:
            return self._execute(plan)
        kind = self._random.randrange(3)
        if kind == 0:
            raise RuntimeError("injected")
        pending = self._execute(plan)
        if kind == 1:
            raise RuntimeError("injected")
        return _Raises(pending)

    def arrive(self) -> None:
        """A random request."""
        draw, handle = self._random, len(self.requests)
        if handle and draw.random() < 0.3:  # the next turn of a conversation
            earlier = draw.randrange(handle)
            said = self._client.answers[earlier, 0].tokens
            prompt = self.requests[earlier].prompt_token_ids.tolist() + said
        else:
            stem = draw.choice(self._stems)
            prompt = stem[: draw.randrange(len(stem) + 1)]
        prompt = (prompt + self._tokens(draw.randrange(6)))[: MAX_LEN - 1] or [1]
        max_tokens = min(draw.choice([0, 1, 8, 24, 40]), MAX_LEN - len(prompt))
        grammar = draw.choice(FORMS) if max_tokens and draw.random() < 0.5 else None
        penalized = draw.random() < 0.3
        params = SamplingParams(
            n=draw.choice([1, 1, 1, 2, 3]),
            max_tokens=None,
            temperature=draw.choice([0.0, 0.0, 0.9]),
            top_p=draw.choice([1.0, 0.95]),
            top_k=draw.choice([0, 0, 20]),
            frequency_penalty=0.4 if penalized else 0.0,
            repetition_penalty=1.2 if penalized else 1.0,
            logit_bias=draw.choice([None, None, {ord("q"): 3.0}]),
            min_tokens=draw.choice([0, 0, min(4, max_tokens)]),
            logprobs=draw.choice([None, None, 0, 2]),
            prompt_logprobs=draw.choice([None, None, None, 1]),
        )
        stops = (EOS,) if grammar or draw.random() < 0.5 else ()
        request = Request(
            handle=handle,
            request_id=str(handle),
            prompt_token_ids=np.array(prompt, np.int32),
            params=params,
            max_tokens=max_tokens,
            stop_token_ids=stops,
            suppress_token_ids=stops if params.min_tokens else (),
            bad_words_token_ids=() if grammar else draw.choice([(), ((5,), (9, 7))]),
            seed=draw.randrange(20),
            priority=draw.randrange(3),
            cache_salt=draw.choice([None, None, "a"]),
            adapter=draw.choice([0, 0, *self._loaded]),
            structured_output=grammar,
        )
        self.requests[handle] = request
        self._client.open(request)
        self.engine.loop.submit(request)

    def event(self) -> None:
        """Something happens between two steps."""
        draw, kind = self._random, self._random.random()
        if kind < 0.15:
            for _ in range(draw.choice([1, 1, 2, 5])):
                self.arrive()
        elif kind < 0.18 and self.requests:
            request = draw.choice([*self.requests.values()])
            choice = draw.choice([-1, draw.randrange(request.params.n)])
            for index in range(request.params.n):
                if choice in (-1, index):
                    self._aborted.add((request.handle, index))
            self.engine.loop.abort(request.handle, choice)
        elif kind < 0.19:
            self.engine.scheduler.reset_prefix_cache()
        elif kind < 0.2:
            index = draw.randrange(NUM_ADAPTERS)
            self.engine.loop.unload_adapter(self._loaded[index])
            self._loaded[index] = 0
        elif kind < 0.22:
            self._reload_adapters()
        elif kind < 0.25 and self.requests:
            request = draw.choice([*self.requests.values()])
            preempt(self.engine.scheduler, request.handle, draw.randrange(request.params.n))

    def step(self) -> None:
        for batch in self.engine.loop.step():
            self._client.take(batch)
        self.engine.loop.check()
        self.num_steps += 1

    def run(self, num_events: int) -> None:
        """Let events and steps alternate, then run dry and compare."""
        for _ in range(num_events):
            self.event()
            self.step()
        while self.engine.scheduler.has_work:
            self.step()
        self.step()
        for (handle, choice), answer in self._client.answers.items():
            self._compare(self.requests[handle], choice, answer)
        self._check_worker()

    def _compare(self, request: Request, choice: int, answer: Answer) -> None:
        if request.handle in self._client.refusals:
            assert not answer.tokens
            return
        assert answer.finish is not FinishReason.NONE, "a sequence has no end"
        alone = msgspec.structs.replace(request, adapter=self._numbers[request.adapter])
        expected, scores = self._model.expect(alone, choice)
        count = len(answer.tokens)
        assert answer.tokens == expected.tokens[:count], (request, answer, expected)
        if request.params.logprobs is not None:
            assert len(answer.logprobs) == count
            np.testing.assert_allclose(
                answer.logprobs, expected.logprobs[:count], atol=_TOLERANCE, rtol=0
            )
        if (request.handle, choice) in self._aborted:
            return
        if answer.finish is FinishReason.ERROR and expected.finish is not FinishReason.ERROR:
            assert answer.failure is not None and "injected" in answer.failure.message, answer
            return
        capacity = self.engine.scheduler._state.blocks.capacity_tokens
        if count < len(expected.tokens):
            assert answer.finish is FinishReason.LENGTH
            assert len(request.prompt_token_ids) + count == capacity + 1
        else:
            assert answer.finish is expected.finish, (request, answer, expected)
        if request.params.prompt_logprobs is not None and request.params.n == 1:
            parts = self._client.prompt_logprobs.get(request.handle, [])
            found = [score for part in parts for score in part.logprobs[:, 0].tolist()]
            np.testing.assert_allclose(found, scores, atol=_TOLERANCE, rtol=0)

    def _check_worker(self) -> None:
        """Once the next plan has told which rows are free, nothing of them is left."""
        last = len(self.requests)
        plain = Request(
            handle=last,
            request_id="last",
            prompt_token_ids=np.array([1, 2], np.int32),
            params=SamplingParams(max_tokens=None),
            max_tokens=1,
        )
        self._raise_in.clear()
        self._client.open(plain)
        self.engine.loop.submit(plain)
        while self.engine.scheduler.has_work:
            self.step()
        started = self.engine.worker._started
        assert started is not None and started.adapters is not None
        assert started.sampler._pipeline.idle, "a row's sampling was not forgotten"
        started.adapters.check()


def main() -> None:
    """Run until the time is over."""
    logging.disable(logging.CRITICAL)  # injected failures are logged with tracebacks
    models: dict[str, Model] = {}
    with tempfile.TemporaryDirectory() as folder:

        def live(seed: int) -> dict[str, int]:
            life = RandomLife(seed, models, Path(folder))
            life.run(num_events=120)
            return {
                "steps": life.num_steps,
                "requests": len(life.requests),
                "preemptions": life.engine.stats.num_preemptions,
            }

        soak(__doc__, live)


if __name__ == "__main__":
    main()
