"""Embeddings, classes, scores and rankings: everything that pooling models answer."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from xllm.core.utils.arrays import Float32Array
from xllm.frontend.intake.cost import input_chars
from xllm.frontend.intake.factory import PreparedRequest
from xllm.frontend.intake.pooling import PoolingFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output.pooled import check_dimensions, embeddings, pair_scores, scores
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.pooling import (
    Classification,
    ClassificationRequest,
    ClassificationResponse,
    Document,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    Input,
    Pooled,
    PoolingFields,
    PoolingRequest,
    PoolingResponse,
    PoolingUsage,
    RerankRequest,
    RerankResponse,
    RerankResult,
    Score,
    ScoreRequest,
    ScoreResponse,
)
from xllm.frontend.services.answers.dispatcher import OutputDispatcher
from xllm.frontend.services.answers.shared import off_loop

_NEEDS = {
    "embed": "it was not loaded for embeddings (--task embed)",
    "classify": "it is no classifier (--task classify)",
}


class PoolingService:
    """Answers inputs with vectors or what follows from them.

    Args:
        factory: makes engine requests; None for a model that generates text, which is refused.
        dispatcher: sends them and brings the answers.
        served: the names that ``model`` may have.
    """

    def __init__(
        self, factory: PoolingFactory | None, dispatcher: OutputDispatcher, served: ServedModels
    ) -> None:
        self._factory = factory
        self._dispatcher = dispatcher
        self._served = served

    async def embed(self, body: EmbeddingRequest) -> EmbeddingResponse:
        """One embedding per input.

        Raises:
            RequestError: the request is refused or failed.
        """
        factory = self._require(body, "embed")
        _check_dimensions(body.dimensions, factory)
        raw, usage = await self._run_inputs(factory, body, body.input, body.add_special_tokens)
        vectors = _vectors(raw, factory, body)
        data = [Embedding(i, v) for i, v in enumerate(_encoded(vectors, body))]
        return EmbeddingResponse(**self._head("embd"), data=data, usage=usage)

    async def pool(self, body: PoolingRequest) -> PoolingResponse:
        """One vector per input: an embedding, or the scores of every label.

        Raises:
            RequestError: the request is refused or failed.
        """
        factory = self._require(body)
        if factory.spec.task == "embed":
            _check_dimensions(body.dimensions, factory)
        elif body.dimensions is not None:
            raise RequestError.bad_field("dimensions", "needs a model that embeds")
        raw, usage = await self._run_inputs(factory, body, body.input, body.add_special_tokens)
        if factory.spec.task == "classify":
            vectors = scores(raw, factory.spec, _activates(body))
        else:
            vectors = _vectors(raw, factory, body)
        data = [Pooled(i, v) for i, v in enumerate(_encoded(vectors, body))]
        return PoolingResponse(**self._head("pool"), data=data, usage=usage)

    async def classify(self, body: ClassificationRequest) -> ClassificationResponse:
        """The label of each input.

        Raises:
            RequestError: the request is refused or failed.
        """
        factory = self._require(body, "classify")
        raw, usage = await self._run_inputs(factory, body, body.input, body.add_special_tokens)
        labels = factory.spec.labels
        rows = scores(raw, factory.spec, body.use_activation is not False)
        data = [
            Classification(i, labels[best], row, len(labels))
            for i, (best, row) in enumerate(
                zip(rows.argmax(axis=1).tolist(), rows.tolist(), strict=True)
            )
        ]
        return ClassificationResponse(**self._head("classify"), data=data, usage=usage)

    async def score(self, body: ScoreRequest) -> ScoreResponse:
        """How well the texts of each pair fit: a cross-encoder's score, or embeddings' cosine.

        Raises:
            RequestError: the request is refused or failed.
        """
        factory = self._require(body)
        first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
        second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
        if len(first) != len(second):
            if len(first) != 1:
                raise RequestError.bad_field(
                    "text_1",
                    f"must be one text or as many as text_2 ({len(second)}), got {len(first)}",
                )
            first = first * len(second)
        factory.check_count("text_2", len(second))
        pairs = list(zip(first, second, strict=True))
        values, usage = await self._score(factory, body, ("text_1", "text_2"), pairs)
        data = [Score(i, value) for i, value in enumerate(values)]
        return ScoreResponse(**self._head("score"), data=data, usage=usage)

    async def rerank(self, body: RerankRequest) -> RerankResponse:
        """Documents by falling relevance; equal ones keep their order.

        Raises:
            RequestError: the request is refused or failed.
        """
        factory = self._require(body)
        if body.top_n is not None and body.top_n < 0:
            raise RequestError.bad_field("top_n", f"must be at least 0, got {body.top_n}")
        factory.check_count("documents", len(body.documents))
        texts = [doc if isinstance(doc, str) else doc.text for doc in body.documents]
        pairs = [(body.query, text) for text in texts]
        values, usage = await self._score(factory, body, ("query", "documents"), pairs)
        order = sorted(range(len(values)), key=lambda i: -values[i])[: body.top_n or None]
        show = body.return_documents is not False
        results = [RerankResult(i, values[i], Document(texts[i]) if show else None) for i in order]
        head = self._head("rerank")
        return RerankResponse(head["id"], head["model"], results, usage)

    async def _score(
        self,
        factory: PoolingFactory,
        body: ScoreRequest | RerankRequest,
        fields: tuple[str, str],
        pairs: list[tuple[str, str]],
    ) -> tuple[list[float], PoolingUsage]:
        options = factory.options(body)
        cost = sum(len(first) + len(second) for first, second in pairs)
        asked = await off_loop(cost, lambda: factory.pairs(fields, pairs, options))
        raw, usage = await self._run(asked.prepared)
        activate = not isinstance(body, ScoreRequest) or body.use_activation is not False
        return pair_scores(raw, asked.places, factory.spec, activate), usage

    def _require(self, body: PoolingFields, task: str | None = None) -> PoolingFactory:
        self._served.adapter(body.model)
        name = self._served.name
        if self._factory is None:
            raise RequestError(400, f"the model {name!r} does not pool: {_NEEDS['embed']}")
        if task is not None and self._factory.spec.task != task:
            raise RequestError(400, f"the model {name!r} cannot do this: {_NEEDS[task]}")
        return self._factory

    async def _run_inputs(
        self,
        factory: PoolingFactory,
        body: PoolingFields,
        entries: Input,
        add_special_tokens: bool | None,
    ) -> tuple[Float32Array, PoolingUsage]:
        options, special = factory.options(body), add_special_tokens is not False
        cost = input_chars(entries)
        return await self._run(
            await off_loop(
                cost, lambda: factory.inputs(entries, options, add_special_tokens=special)
            )
        )

    async def _run(self, prepared: Sequence[PreparedRequest]) -> tuple[Float32Array, PoolingUsage]:
        """Raw vectors (N, D) of the requests, in order. A cancelled call aborts them."""
        stream = self._dispatcher.submit(prepared, whole=True)
        try:
            while not stream.finished:
                await stream.read()
        finally:
            stream.close()
        vectors = [answer.pooled for answer in stream.answers]
        found = [vector for vector in vectors if vector is not None]
        if len(found) != len(vectors):
            raise RequestError(500, "the engine ended the request without a vector")
        total = sum(answer.num_prompt_tokens for answer in stream.answers)
        return np.stack(found), PoolingUsage(total, total)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self._served.name,
        }


def _activates(body: EmbeddingRequest) -> bool:
    return body.use_activation is not False and body.normalize is not False


def _vectors(raw: Float32Array, factory: PoolingFactory, body: EmbeddingRequest) -> Float32Array:
    """Embeddings of the length asked for, shape (inputs, dimensions)."""
    if _activates(body):
        return embeddings(raw, factory.spec, body.dimensions)
    return raw[:, : body.dimensions]


def _check_dimensions(dimensions: int | None, factory: PoolingFactory) -> None:
    try:
        check_dimensions(dimensions, factory.spec)
    except ValueError as error:
        raise RequestError.from_value_error(error) from None


def _encoded(vectors: Float32Array, body: EmbeddingRequest) -> Sequence[list[float] | str]:
    if body.encoding_format != "base64":
        floats: list[list[float]] = vectors.tolist()
        return floats
    data = np.ascontiguousarray(vectors, "<f4")
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in data]
