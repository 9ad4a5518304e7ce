"""Offline beam search: ``LLM.beam_search`` with vLLM's arguments and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from xllm.entrypoints.outputs import RequestOutput
from xllm.frontend.intake import PreparedRequest, RequestFactory
from xllm.frontend.intake.beam import BeamParams, PromptSearch
from xllm.frontend.output.beam import EarlyStopping, FoundAnswer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Width and length of a search; every beam that ends within ``max_tokens`` is an answer.

    ``early_stopping`` and ``length_penalty`` mean what they mean to Hugging Face's ``generate``.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    include_stop_str_in_output: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One answer: the tokens of prompt and answer, and what they are worth."""

    tokens: list[int]
    text: str  # of the answer
    cum_logprob: float
    score: float
    finish_reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


def search_all(
    factory: RequestFactory,
    prepared: Sequence[PreparedRequest],
    params: BeamSearchParams,
    run: Callable[[list[PreparedRequest]], list[RequestOutput]],
) -> list[BeamSearchOutput]:
    """Search behind every prompt at once.

    Args:
        factory: made ``prepared``.
        prepared: one request per prompt.
        params: of all searches.
        run: answers requests, in their order.

    Raises:
        ValueError: a parameter is out of range.
    """
    width = BeamParams(
        beam_width=params.beam_width,
        n=params.beam_width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
    )
    searches = [PromptSearch(factory, each, width) for each in prepared]
    while running := [each for each in searches if not each.search.done]:
        groups = [each.requests() for each in running]
        outputs = iter(run([request for group in groups for request in group]))
        for each, group in zip(running, groups, strict=True):
            each.search.advance([_alternatives(next(outputs)) for _ in group])
    return [
        BeamSearchOutput([_sequence(each, a) for a in each.search.best(params.beam_width)])
        for each in searches
    ]


def _alternatives(output: RequestOutput) -> dict[int, float]:
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    return {token_id: found.logprob for token_id, found in logprobs[0].items()}


def _sequence(search: PromptSearch, answer: FoundAnswer) -> BeamSearchSequence:
    tokens = [*search.prepared.request.prompt_token_ids.tolist(), *answer.token_ids]
    if answer.end_token_id is not None:
        tokens.append(answer.end_token_id)
    reason = "length" if answer.end_token_id is None else "stop"
    return BeamSearchSequence(
        tokens, search.choice(0, answer).text, answer.logprob, answer.score, reason
    )
