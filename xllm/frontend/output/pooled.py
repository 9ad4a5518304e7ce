"""From a pooling model's raw vectors to what people asked for. Shapes: N inputs, D outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xllm.core.config.files import PoolingSpec
from xllm.core.utils.arrays import Float32Array


def embeddings(raw: Float32Array, spec: PoolingSpec, dimensions: int | None = None) -> Float32Array:
    """Embeddings (N, ``dimensions`` or D): cut first, then of length 1 where the model's are."""
    vectors = raw if dimensions is None else raw[:, :dimensions]
    return unit(vectors) if spec.normalize else vectors


def unit(vectors: Float32Array) -> Float32Array:
    """Every row scaled to length 1; a row of zeros stays."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Float32Array = vectors / np.maximum(norms, 1e-12)
    return scaled


def scores(raw: Float32Array, spec: PoolingSpec, use_activation: bool = True) -> Float32Array:
    """Scores (N, D) of a classifier's logits."""
    if not use_activation or spec.activation == "identity":
        return raw
    if spec.activation == "sigmoid":
        # tanh overflows nowhere.
        result: Float32Array = (0.5 * (1.0 + np.tanh(0.5 * raw))).astype(np.float32)
        return result
    exponentials = np.exp(raw - raw.max(axis=1, keepdims=True))
    result = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def pair_scores(
    raw: Float32Array,
    places: Sequence[tuple[int, int]] | None,
    spec: PoolingSpec,
    use_activation: bool = True,
) -> list[float]:
    """Scores of pairs of texts.

    Args:
        raw: (N, D) a classifier's logits, one row per pair; or embeddings, one row per text.
        places: the rows of each pair's two texts, whose cosine is the score.
    """
    if places is None:
        found: list[float] = scores(raw, spec, use_activation)[:, 0].tolist()
        return found
    vectors = unit(raw)
    first, second = np.array(places).T
    similar: list[float] = (vectors[first] * vectors[second]).sum(axis=1).tolist()
    return similar


def check_dimensions(dimensions: int | None, spec: PoolingSpec) -> None:
    """Check that embeddings may be cut to this size.

    Raises:
        ValueError: the model's vectors are shorter, or lose their meaning when they are cut.
    """
    if dimensions is None or dimensions == spec.size:
        return
    if not 1 <= dimensions <= spec.size:
        raise ValueError(f"dimensions must be between 1 and {spec.size}, got {dimensions}")
    if spec.dimensions is None:
        raise ValueError(
            f"dimensions must be {spec.size}: the model's embeddings are not made to be cut "
            "(config.json declares neither is_matryoshka nor matryoshka_dimensions)"
        )
    if spec.dimensions and dimensions not in spec.dimensions:
        listed = ", ".join(map(str, spec.dimensions))
        raise ValueError(f"dimensions must be one of {listed}, got {dimensions}")
