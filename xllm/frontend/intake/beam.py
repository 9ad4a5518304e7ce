"""Beam search: its parameters, and the one-token requests that it is made of."""

from __future__ import annotations

import dataclasses
import math

import msgspec

from xllm.core.request.finish import FinishReason
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.output.answer import AnswerState
from xllm.frontend.output.beam import BeamSearch, EarlyStopping, FoundAnswer
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest

# Fields whose effect a search over raw probabilities would silently lose.
_EXCLUDED = (
    *("stream", "best_of", "echo", "suffix", "logprobs", "top_logprobs", "prompt_logprobs", "stop"),
    *("min_tokens", "presence_penalty", "frequency_penalty", "bad_words", "allowed_token_ids"),
    *("logit_bias", "repetition_penalty"),
)
_NO_EFFECT = {"repetition_penalty": 1.0}  # of values that are not false already
_MAX_LENGTH_PENALTY = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How wide to search, and how many answers to return.

    Raises:
        ValueError: a value is out of range; the message starts with the field's name.
    """

    beam_width: int
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if self.beam_width < 1:
            raise ValueError(f"beam_width must be at least 1, got {self.beam_width}")
        if not 1 <= self.n <= self.beam_width:
            raise ValueError(f"n must be between 1 and beam_width ({self.beam_width})")
        penalty = self.length_penalty
        if not (math.isfinite(penalty) and abs(penalty) <= _MAX_LENGTH_PENALTY):
            raise ValueError(
                f"length_penalty must be between {-_MAX_LENGTH_PENALTY:g} and "
                f"{_MAX_LENGTH_PENALTY:g}, got {penalty}"
            )


def beam_params(body: ChatCompletionRequest | CompletionRequest, max_width: int) -> BeamParams:
    """The search that a request asks for; ``beam_width`` is ``n`` unless given.

    Raises:
        ValueError: out of range, or beside a field that a search cannot respect.
    """
    for name in _EXCLUDED:
        value = getattr(body, name, None)
        if value and value != _NO_EFFECT.get(name):
            raise ValueError(f"{name} cannot be combined with use_beam_search")
    n = body.n if body.n is not None else 1
    width = body.beam_width if body.beam_width is not None else n
    if width > max_width:
        name = "n" if body.beam_width is None else "beam_width"
        raise ValueError(f"{name} must be at most {max_width} with use_beam_search, got {width}")
    return BeamParams(
        beam_width=width,
        n=n,
        length_penalty=body.length_penalty if body.length_penalty is not None else 1.0,
        early_stopping=body.early_stopping if body.early_stopping is not None else False,
    )


class PromptSearch:
    """The search behind one prepared request.

    Args:
        factory: makes the requests for single tokens.
        prepared: the whole request; its own sampling is not used.
        params: of the search.

    Raises:
        ValueError: the request asks for no token at all, or for an answer of a given form.
    """

    def __init__(
        self, factory: RequestFactory, prepared: PreparedRequest, params: BeamParams
    ) -> None:
        if prepared.request.structured_output is not None:
            raise ValueError("use_beam_search cannot be combined with an answer of a given form")
        if prepared.request.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1 with use_beam_search, got 0")
        self._factory = factory
        self._request = prepared.request
        self.prepared = prepared
        self.search = BeamSearch(
            params.beam_width,
            prepared.request.max_tokens,
            prepared.request.stop_token_ids,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )

    def requests(self) -> list[PreparedRequest]:
        """One request per beam: its next token, with the alternatives that the search needs."""
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            logprobs=self.search.num_alternatives,
        )
        return [
            self._factory.successor(self._request, beam.token_ids, params)
            for beam in self.search.beams
        ]

    def choice(self, index: int, answer: FoundAnswer) -> ChoiceDelta:
        """An answer as the news that an ordinary one of the same tokens would bring at once."""
        state = AnswerState(
            self._request,
            self._factory.tokenizer,
            eos_token_ids=frozenset(self._factory.eos_token_ids),
            keep_entries=True,
            token_table=self.prepared.token_table,
        ).choices[0]
        end = answer.end_token_id
        if end is None:
            state.push(answer.token_ids, None, FinishReason.LENGTH, -1)
        else:
            state.push((*answer.token_ids, end), None, FinishReason.STOP, end)
        return msgspec.structs.replace(state.take(), index=index)
