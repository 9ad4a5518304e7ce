"""minilm on its real weights equals transformers' encoder with sentence-transformers' pooling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from xllm import LLM
from xllm.modeling.weights.bundled import pull

pytestmark = [pytest.mark.weights, pytest.mark.slow]

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn animal leapt above a sleepy hound.",
    "Stock markets fell sharply after the announcement.",
    "naïve café — déjà vu, 東京 and emoji 🦊",
    "word " * 200,
    "x",
]


def _reference(folder) -> np.ndarray:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.stack(vectors)


@pytest.mark.parametrize(
    ("dtype", "difference", "cosine"),
    [
        ("float32", 1e-4, 0.99999),
        ("bfloat16", 2e-2, 0.999),
    ],
)
def test_embeddings_equal_transformers(dtype, difference, cosine):
    expected = _reference(pull("minilm"))
    with LLM("minilm", dtype=dtype) as llm:
        together = np.array([o.outputs.embedding for o in llm.embed(TEXTS, use_tqdm=False)])
        alone = np.array([llm.embed(text, use_tqdm=False)[0].outputs.embedding for text in TEXTS])
    np.testing.assert_allclose(together, expected, atol=difference, rtol=0)
    assert (together * expected).sum(axis=1).min() > cosine
    np.testing.assert_allclose(together, alone, atol=difference, rtol=0)


def test_similar_sentences_are_near():
    with LLM("minilm") as llm:
        near, far = (o.outputs.score for o in llm.score(TEXTS[0], TEXTS[1:3], use_tqdm=False))
    assert near > 0.5 > 0.1 > far
