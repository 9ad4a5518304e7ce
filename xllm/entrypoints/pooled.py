"""What pooling models answer offline: ``LLM.embed``, ``LLM.classify`` and ``LLM.score``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from xllm.core.utils.arrays import Float32Array
from xllm.entrypoints.outputs import plain_error
from xllm.frontend.intake import PoolingFactory, PoolingOptions, PreparedRequest
from xllm.frontend.output import AnswerState
from xllm.frontend.output.pooled import check_dimensions, embeddings, pair_scores, scores
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.pooling import PoolingFields

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """An embedding, as a list of floats."""

    embedding: list[float]


@dataclasses.dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """The score of every label, and the best label."""

    probs: list[float]
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreOutput:
    """How well the two texts of a pair fit."""

    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class PooledOutput(Generic[T]):
    """One input and what came of it. ``num_prompt_tokens`` counts both texts of a pair."""

    request_id: str
    num_prompt_tokens: int
    outputs: T


class OfflinePooling:
    """Makes requests of prompts and results of vectors.

    Args:
        factory: intake of the model; None for one that generates text, which is refused.
        run: runs requests to their end; raises as ``LLM.generate`` does.
    """

    def __init__(
        self,
        factory: PoolingFactory | None,
        run: Callable[[Sequence[PreparedRequest], bool], list[AnswerState]],
    ) -> None:
        self._factory = factory
        self._run = run

    def embed(
        self, prompts: Any, dimensions: int | None, truncate: int | None, use_tqdm: bool
    ) -> list[PooledOutput[EmbeddingOutput]]:
        """See ``LLM.embed``."""
        factory, options = self._require("embed", truncate)
        check_dimensions(dimensions, factory.spec)
        answers = self._inputs(factory, prompts, options, use_tqdm)
        rows = embeddings(_raw(answers), factory.spec, dimensions).tolist()
        return [_output(a, EmbeddingOutput(row)) for a, row in zip(answers, rows, strict=True)]

    def classify(
        self, prompts: Any, truncate: int | None, use_tqdm: bool
    ) -> list[PooledOutput[ClassificationOutput]]:
        """See ``LLM.classify``."""
        factory, options = self._require("classify", truncate)
        answers = self._inputs(factory, prompts, options, use_tqdm)
        rows = scores(_raw(answers), factory.spec)
        labels = [factory.spec.labels[best] for best in rows.argmax(axis=1)]
        return [
            _output(answer, ClassificationOutput(row, label))
            for answer, row, label in zip(answers, rows.tolist(), labels, strict=True)
        ]

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        truncate: int | None,
        use_tqdm: bool,
    ) -> list[PooledOutput[ScoreOutput]]:
        """See ``LLM.score``."""
        factory, options = self._require(None, truncate)
        lefts = [first] if isinstance(first, str) else list(first)
        rights = [second] if isinstance(second, str) else list(second)
        if len(lefts) == 1:
            lefts *= len(rights)
        if len(lefts) != len(rights):
            raise ValueError(
                f"first must be one text or as many as second ({len(rights)}), got {len(lefts)}"
            )
        pairs = list(zip(lefts, rights, strict=True))
        try:
            asked = factory.pairs(("first", "second"), pairs, options)
        except RequestError as error:
            raise plain_error(error) from None
        answers = self._run(asked.prepared, use_tqdm)
        values = pair_scores(_raw(answers), asked.places, factory.spec)
        places: Sequence[tuple[int, ...]] = asked.places or [(i,) for i in range(len(pairs))]
        return [
            PooledOutput(
                answers[place[-1]].request.request_id,
                sum(answers[i].num_prompt_tokens for i in place),
                ScoreOutput(value),
            )
            for place, value in zip(places, values, strict=True)
        ]

    def _require(
        self, task: str | None, truncate: int | None
    ) -> tuple[PoolingFactory, PoolingOptions]:
        factory = self._factory
        if factory is None or (task is not None and factory.spec.task != task):
            asked = f"answer {task}()" if task else "score"
            raise ValueError(f"the model cannot {asked}; load it with task={task or 'embed'!r}")
        try:
            return factory, factory.options(PoolingFields(truncate_prompt_tokens=truncate))
        except RequestError as error:
            raise plain_error(error) from None

    def _inputs(
        self, factory: PoolingFactory, prompts: Any, options: PoolingOptions, use_tqdm: bool
    ) -> list[AnswerState]:
        try:
            return self._run(factory.inputs(_entries(prompts), options), use_tqdm)
        except RequestError as error:
            raise plain_error(error) from None


def _entries(prompts: Any) -> Any:
    """Texts and lists of ids out of what ``LLM.generate`` takes as prompts."""
    if isinstance(prompts, str):
        return prompts
    if isinstance(prompts, Mapping):
        prompts = [prompts]
    found = []
    for prompt in prompts:
        if isinstance(prompt, Mapping):
            prompt = prompt.get("prompt_token_ids") or prompt.get("prompt", "")
        found.append(prompt if isinstance(prompt, str | int) else list(prompt))
    return found


def _raw(answers: Sequence[AnswerState]) -> Float32Array:
    vectors = [answer.pooled for answer in answers if answer.pooled is not None]
    assert len(vectors) == len(answers), "a request ended without a vector"
    return np.stack(vectors)


def _output(answer: AnswerState, outputs: T) -> PooledOutput[T]:
    return PooledOutput(answer.request.request_id, answer.num_prompt_tokens, outputs)
