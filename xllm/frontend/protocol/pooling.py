"""``/v1/embeddings``, ``/pooling``, ``/classify``, ``/score`` and ``/rerank``.

Names and shapes follow OpenAI (embeddings), Jina and Cohere (rerank) and vLLM (the rest).
"""

from __future__ import annotations

from typing import Literal

import msgspec

EncodingFormat = Literal["float", "base64"]
# A string, token ids, or a list of either kind.
Input = str | list[str | int | list[int]]


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields of every pooling endpoint.

    Of a prompt with more than ``truncate_prompt_tokens`` tokens the first ones are kept; -1 cuts to
    the context.
    """

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["right"] | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    user: str | None = None


class EmbeddingRequest(PoolingFields, kw_only=True):
    """Texts (or token ids) to embed; without activation (or normalization, as it was called) the
    vector is what the model computed."""

    input: Input
    encoding_format: EncodingFormat | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """The same for any pooling model."""


class ClassificationRequest(PoolingFields, kw_only=True):
    """Texts (or token ids) to classify; without activation the scores are logits."""

    input: Input
    use_activation: bool | None = None
    add_special_tokens: bool | None = None


class ScoreRequest(PoolingFields, kw_only=True):
    """Pairs to score: one to one, one to many, or as many as there are of the other."""

    text_1: str | list[str]
    text_2: str | list[str]
    use_activation: bool | None = None


class Document(msgspec.Struct):
    """A document of a rerank request, and as it comes back."""

    text: str


class RerankRequest(PoolingFields, kw_only=True):
    """Documents to order by their relevance to a query; ``top_n`` 0 or null returns all."""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class PoolingUsage(msgspec.Struct):
    """Tokens read; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingResponse(msgspec.Struct):
    """One vector per input."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PoolingUsage
    object: Literal["list"] = "list"


class Pooled(msgspec.Struct):
    """One vector, of whatever the model computes."""

    index: int
    data: list[float] | str
    object: Literal["pooling"] = "pooling"


class PoolingResponse(msgspec.Struct):
    """One vector per input."""

    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: PoolingUsage
    object: Literal["list"] = "list"


class Classification(msgspec.Struct):
    """The best label of one input, and the score of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationResponse(msgspec.Struct):
    """One classification per input."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PoolingUsage
    object: Literal["list"] = "list"


class Score(msgspec.Struct):
    """The score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct):
    """One score per pair."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage
    object: Literal["list"] = "list"


class RerankResult(msgspec.Struct, omit_defaults=True):
    """A document's place in the request, and its relevance."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(msgspec.Struct):
    """Results by falling relevance."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PoolingUsage
