"""Beam search: its parameters, and the one-token requests that it is made of."""

from __future__ import annotations

import dataclasses
import math

from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.output.beam import BeamSearch, EarlyStopping, FoundAnswer
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.text.detokenizer import Detokenizer

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

    def text(self, answer: FoundAnswer) -> str:
        """The text of an answer, with that of its end token if the request asks for it."""
        params = self._request.params
        token_ids = answer.token_ids
        if answer.end_token_id is not None and params.include_stop_str_in_output:
            token_ids = (*token_ids, answer.end_token_id)
        detokenizer = Detokenizer(
            self._factory.tokenizer, skip_special_tokens=params.skip_special_tokens
        )
        return detokenizer.push(token_ids) + detokenizer.flush()
