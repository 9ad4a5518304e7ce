"""Random life in the scheduler, for as long as you like.

    python -m tests.soak.scheduler --minutes 10 [--seed N]

Random engines (one or two cache groups, both loops, both policies, tight caches) get random
arrivals, aborts, preemptions, failures and cache resets. After every step all invariants are
checked, and every finished sequence is compared with its solo run. Prints the number of steps, and
on a failure the seed that repeats it.
"""

from __future__ import annotations

import logging
import random

from tests.fakes.engine import Answer, FakeEngine, make_request
from tests.soak.runner import soak
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request

_VOCAB_SIZE = 40
_STOP_TOKEN = 7


class RandomLife:
    """One random engine and what happens to it.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        draw = self._random
        block_size = draw.choice([1, 2, 4, 5])
        windows = draw.choice([(None,), (None,), (None, 6), (9, None), (3, 12, None)])
        self._max_model_len = draw.choice([16, 32, 64])
        blocks = -(-self._max_model_len // block_size)
        # From a fraction of one context, where some requests are refused, to plenty.
        num_blocks = max(1, int(blocks * draw.choice([0.5, 1.0, 1.3, 1.5, 2.5, 6.0])))
        self.engine = FakeEngine(
            [num_blocks if window is None else max(1, num_blocks) for window in windows],
            block_size=block_size,
            windows=windows,
            overlap=draw.random() < 0.6,
            max_model_len=self._max_model_len,
            vocab_size=_VOCAB_SIZE,
            enable_prefix_caching=draw.random() < 0.7,
            max_num_seqs=draw.choice([1, 3, 5, 8, 8]),
            max_num_batched_tokens=draw.choice([1, 5, 8, 16, 64, 64]),
            scheduling=draw.choice(["decode_first", "prefill_first"]),
            priority_policy=draw.choice(["fcfs", "priority"]),
            enable_chunked_prefill=draw.random() < 0.8,
            max_waiting=draw.choice([4096, 4096, 2]),
            worker={
                "fail_at": {
                    (draw.randrange(50), draw.randrange(12)) for _ in range(draw.choice([0, 8]))
                },
                "raise_at": {
                    draw.randrange(5, 200): draw.random() < 0.5
                    for _ in range(draw.choice([0, 0, 3]))
                },
                "raise_for": {
                    draw.randrange(50): draw.random() < 0.5 for _ in range(draw.choice([0, 0, 2]))
                },
                "full_step": draw.choice([0, 8, 16]),
            },
        )
        self.requests: dict[int, Request] = {}
        self._aborted: set[tuple[int, int]] = set()
        # Few distinct beginnings, so that prefixes are found again.
        self._stems = [self._tokens(draw.randrange(1, self._max_model_len)) for _ in range(4)]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(_VOCAB_SIZE) for _ in range(count)]

    def arrive(self) -> None:
        """A random request."""
        draw = self._random
        handle = len(self.requests)
        if handle and draw.random() < 0.3:  # the next turn of a conversation
            earlier = draw.randrange(handle)
            said = self.engine.answers[earlier, 0].tokens
            prompt = self.requests[earlier].prompt_token_ids.tolist() + said
        else:
            stem = draw.choice(self._stems)
            prompt = stem[: draw.randrange(len(stem) + 1)]
        prompt += self._tokens(draw.randrange(0, 6))
        prompt = prompt[: self._max_model_len] or [1]
        most = self._max_model_len - len(prompt)
        max_tokens = draw.choice([0, 1, draw.randint(0, most), most])
        max_tokens = min(max_tokens, most)
        request = make_request(
            handle,
            prompt,
            max_tokens,
            stop_token_ids=draw.choice([(), (_STOP_TOKEN,), (_STOP_TOKEN, 9)]),
            seed=draw.randrange(50),
            priority=draw.randrange(3),
            cache_salt=draw.choice([None, None, None, "a"]),
            n=draw.choice([1, 1, 1, 2, 3]),
            min_tokens=draw.choice([0, 0, min(4, max_tokens)]),
            logprobs=draw.choice([None, 1]),
            prompt_logprobs=draw.choice([None, None, 1]),
        )
        self.requests[handle] = request
        self.engine.add(request)

    def event(self) -> None:
        """Something happens between two steps."""
        draw = self._random
        kind = draw.random()
        if kind < 0.15:
            for _ in range(draw.choice([1, 1, 2, 5])):
                self.arrive()
        elif kind < 0.2 and self.requests:
            request = self.requests[draw.randrange(len(self.requests))]
            choice = draw.choice([-1, draw.randrange(request.params.n)])
            for index in range(request.params.n):
                answer = self.engine.answers[request.handle, index]
                if choice in (-1, index) and answer.finish is FinishReason.NONE:
                    self._aborted.add((request.handle, index))
            self.engine.loop.abort(request.handle, choice, stopped=draw.random() < 0.3)
        elif kind < 0.21:
            self.engine.scheduler.reset_prefix_cache()
        elif kind < 0.25 and self.requests:
            request = self.requests[draw.randrange(len(self.requests))]
            self.engine.preempt(request.handle, draw.randrange(request.params.n))

    def run(self, num_events: int) -> int:
        """Let events and steps alternate, then run dry and compare; the number of steps."""
        for _ in range(num_events):
            self.event()
            self.engine.step()
        self.engine.run(max_steps=100_000)
        for (handle, choice), answer in self.engine.answers.items():
            self._compare(self.requests[handle], choice, answer)
        return self.engine.num_steps

    def _compare(self, request: Request, choice: int, answer: Answer) -> None:
        if request.handle in self.engine.refusals:
            assert not answer.tokens and answer.finish is FinishReason.NONE
            return
        assert answer.finish is not FinishReason.NONE, "a sequence has no end"
        expected = self.engine.expect(request, choice)
        assert answer.tokens == expected[: len(answer.tokens)], "tokens differ from the solo run"
        if request.params.logprobs is not None:
            assert len(answer.logprobs) == len(answer.tokens)
        if (request.handle, choice) in self._aborted:
            return
        if answer.finish is FinishReason.ERROR:
            assert answer.failure is not None
            assert "injected" in answer.failure.message or "NaN" in answer.failure.message
            return
        capacity = self.engine.capacity_tokens
        if answer.finish is FinishReason.LENGTH and len(answer.tokens) < len(expected):
            assert len(request.prompt_token_ids) + len(answer.tokens) == capacity + 1
        else:
            assert len(answer.tokens) == len(expected)
        self._compare_prompt_logprobs(request)

    def _compare_prompt_logprobs(self, request: Request) -> None:
        entries = self.engine.prompt_logprobs.get(request.handle, [])
        tokens = [token for entry in entries for token in entry.token_ids[:, 0].tolist()]
        starts = [entry.start for entry in entries]
        if request.params.prompt_logprobs is None:
            assert not entries
        elif request.params.n == 1:
            assert tokens == request.prompt_token_ids.tolist()[1:]
            assert starts == sorted(set(starts))


def live(seed: int) -> dict[str, int]:
    """One engine's life."""
    life = RandomLife(seed)
    num_steps = life.run(num_events=150)
    return {
        "steps": num_steps,
        "requests": len(life.requests),
        "preemptions": life.engine.loop.stats().num_preemptions,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # injected failures are logged with tracebacks
    soak(__doc__, live)
