"""What offline generation returns, and how it is put together from the frontend's deltas."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from xllm.frontend.intake import PreparedRequest
from xllm.frontend.output import AnswerState, ChoiceDelta, TokenEntry
from xllm.frontend.protocol.errors import RequestError


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """Logprob of one token at one position."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One answer. ``token_ids`` include the token that ended it, which is not part of ``text``."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclasses.dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of ``time.perf_counter``."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """One prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = False


class Collector:
    """Puts the deltas of answers together into outputs.

    Args:
        decode: token ids to text, for the tokens of logprobs.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._outputs: dict[int, RequestOutput] = {}
        self._num_tokens = 0

    def open(self, prepared: PreparedRequest, answer: AnswerState) -> AnswerState:
        """Begin the output of a request; returns ``answer``."""
        request = prepared.request
        wants = request.params.logprobs is not None
        self._outputs[request.handle] = RequestOutput(
            request.request_id,
            prepared.prompt_text,
            request.prompt_token_ids.tolist(),
            [
                CompletionOutput(index, logprobs=[] if wants else None)
                for index in range(request.params.n)
            ],
            RequestMetrics(time.perf_counter()),
        )
        return answer

    def read(self, answer: AnswerState) -> None:
        """Take what an answer gained; an error waits for ``output``."""
        if answer.error is None:
            self.add(answer, answer.take())

    def add(self, answer: AnswerState, deltas: Sequence[ChoiceDelta]) -> None:
        """Append deltas that were taken from an answer."""
        whole = self._outputs[answer.request.handle]
        now = time.perf_counter()
        if whole.metrics.first_token_time is None and answer.num_generated_tokens:
            whole.metrics.first_token_time = now
        if answer.finished:
            whole.metrics.finished_time = now
        for delta in deltas:
            output = whole.outputs[delta.index]
            output.text += delta.text
            output.token_ids += delta.token_ids
            self._num_tokens += len(delta.token_ids)
            if output.logprobs is not None:
                output.logprobs += [self._logprobs(entry) for entry in delta.entries]
            if delta.finish_reason is not None:
                output.finish_reason = delta.finish_reason
                output.stop_reason = delta.stop_reason

    def output(self, answer: AnswerState) -> RequestOutput:
        """The output so far.

        Raises:
            RuntimeError: the request failed in the engine.
            ValueError: it could not be served.
        """
        if answer.error is not None:
            raise plain_error(answer.error)
        output = self._outputs[answer.request.handle]
        output.num_cached_tokens = answer.num_cached_tokens
        output.finished = answer.finished
        if answer.request.params.logprobs is not None:
            for each, choice in zip(output.outputs, answer.choices, strict=True):
                each.cumulative_logprob = choice.cumulative_logprob
        return output

    def close(self, answer: AnswerState) -> RequestOutput:
        """The whole output; raises as ``output`` does."""
        output = self.output(answer)
        if answer.request.params.prompt_logprobs is not None:
            output.prompt_logprobs = [
                None if entry.logprob is None else self._logprobs(entry)
                for entry in answer.prompt_logprobs
            ]
        del self._outputs[answer.request.handle]
        return output

    def speed(self, seconds: float) -> str:
        """Generated tokens per second, for the progress bar."""
        return f"{self._num_tokens / max(seconds, 1e-9):.1f} tok/s"

    def _logprobs(self, entry: TokenEntry) -> dict[int, Logprob]:
        assert entry.logprob is not None
        found = {
            token: Logprob(value, rank, self._decode([token]))
            for rank, (token, value) in enumerate(entry.alternatives, 1)
        }
        found.setdefault(
            entry.token_id, Logprob(entry.logprob, entry.rank, self._decode([entry.token_id]))
        )
        return found


def plain_error(error: RequestError) -> ValueError | RuntimeError:
    """What Python callers expect: ``ValueError`` for a bad request, else ``RuntimeError``."""
    return (ValueError if error.status < 500 else RuntimeError)(error.message)
