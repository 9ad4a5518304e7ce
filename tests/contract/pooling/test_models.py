"""Vectors of the engine equal transformers', whatever shares a batch or how a prompt is split."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.contract.pooling.engine import PoolingEngine, Prompt
from tests.fakes.bert import write_sentence_transformers

TOLERANCE = 1e-4
PROMPTS: list[Prompt] = [
    ([2, 17, 94, 41, 5, 9, 77, 23, 3], 0),
    ([2, 8, 3], 0),
    ([2, 60, 11, 88, 31, 54, 19, 70, 8, 42, 99, 12, 65, 37, 21, 22, 23, 24, 25, 3], 0),
    ([2, 88, 31, 3], 0),
    ([2, 4, 5, 3], 0),
]
PAIRS: list[Prompt] = [([2, 17, 94, 3, 5, 9, 77, 3], 4), ([2, 8, 3, 60, 3], 3), ([2, 8, 60, 3], 0)]

_SHAPE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_BERT = transformers.BertConfig(**_SHAPE)
_QWEN3 = transformers.Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=16)


def _labels(config: transformers.PretrainedConfig, count: int) -> transformers.PretrainedConfig:
    changed = type(config).from_dict(config.to_dict())
    changed.num_labels = count
    return changed


# name: config, class of the reference, sentence-transformers' pooling, prompts
CASES = {
    "bert-mean": (_BERT, transformers.AutoModel, "mean_tokens", PROMPTS),
    "bert-cls": (_BERT, transformers.AutoModel, None, PROMPTS),
    "bert-mean-of-pairs": (_BERT, transformers.AutoModel, "mean_tokens", PAIRS),
    "bert-classifier": (
        *(_labels(_BERT, 3), transformers.AutoModelForSequenceClassification, None, PROMPTS),
    ),
    "bert-cross-encoder": (
        *(_labels(_BERT, 1), transformers.AutoModelForSequenceClassification, None, PAIRS),
    ),
    "qwen3-last": (_QWEN3, transformers.AutoModel, "lasttoken", PROMPTS),
    "qwen3-mean": (_QWEN3, transformers.AutoModel, "mean_tokens", PROMPTS),
    "qwen3-from-generator": (_QWEN3, transformers.AutoModelForCausalLM, "lasttoken", PROMPTS),
    "qwen3-classifier": (
        *(_labels(_QWEN3, 2), transformers.AutoModelForSequenceClassification, None, PROMPTS),
    ),
}


def _checkpoint(name: str, folder: Path) -> np.ndarray:
    """Save the reference of a case and return what it makes of the prompts."""
    config, auto, method, prompts = CASES[name]
    model = auto.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in key.lower() or key.endswith("bias"):
                parameter.add_(noise, alpha=0.2)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    model.eval().save_pretrained(folder)
    if method is not None:
        write_sentence_transformers(folder, method)
    return np.stack([_reference(model, method, prompt) for prompt in prompts])


@torch.inference_mode()
def _reference(model: torch.nn.Module, method: str | None, prompt: Prompt) -> np.ndarray:
    ids, second_start = prompt
    arguments = {"input_ids": torch.tensor([list(ids)])}
    if model.config.model_type == "bert":
        types = [int(0 < second_start <= i) for i in range(len(ids))]
        arguments["token_type_ids"] = torch.tensor([types])
    output = model(**arguments, output_hidden_states=True)
    if "SequenceClassification" in type(model).__name__:
        return output.logits[0].numpy()
    hidden = output.hidden_states[-1][0]
    pools: dict[str | None, Callable[[], torch.Tensor]] = {
        "mean_tokens": lambda: hidden.mean(0),
        "lasttoken": lambda: hidden[-1],
        None: lambda: hidden[0],
    }
    return pools[method]().numpy()


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> tuple[Path, np.ndarray, list[Prompt]]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, _checkpoint(request.param, folder), CASES[request.param][3]


def test_vectors_equal_the_reference_together_and_alone(case):
    folder, expected, prompts = case
    engine = PoolingEngine(folder)
    assert expected.std() > 0.1, "the comparison would not notice much"
    assert np.abs(expected[0] - expected[1]).max() > 100 * TOLERANCE
    together = engine.vectors(prompts)
    np.testing.assert_allclose(together, expected, atol=TOLERANCE, rtol=0)
    alone = engine.vectors(prompts, together=False)
    np.testing.assert_allclose(alone, together, atol=1e-5, rtol=0)


def test_small_steps_and_overlap_change_nothing(case):
    """Prompts that must be whole raise the token budget; the others are computed in chunks."""
    folder, expected, prompts = case
    options = {"max_num_batched_tokens": 5, "max_num_seqs": 2, "async_scheduling": True}
    engine = PoolingEngine(folder, **options)
    np.testing.assert_allclose(engine.vectors(prompts), expected, atol=TOLERANCE, rtol=0)
    longest = max(len(ids) for ids, _ in prompts)
    whole = engine.stats().num_steps <= len(prompts)
    assert whole or longest > 5


def test_bfloat16_points_the_same_way(case):
    folder, expected, prompts = case
    vectors = PoolingEngine(folder, dtype="bfloat16").vectors(prompts)
    if expected.shape[1] > 3:  # embeddings
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((vectors * expected).sum(axis=1) / norms).min() > 0.999
    np.testing.assert_allclose(vectors, expected, atol=0.1, rtol=0)


def test_last_token_pooling_shares_prefixes_and_survives_preemption(tmp_path):
    expected = _checkpoint("qwen3-last", tmp_path)
    engine = PoolingEngine(tmp_path, block_size=4, num_kv_tokens=24, max_num_batched_tokens=8)
    prompts = [*PROMPTS, PROMPTS[2]]
    found = engine.vectors(prompts)
    np.testing.assert_allclose(found, [*expected, expected[2]], atol=TOLERANCE, rtol=0)
    engine.vectors([PROMPTS[2]])
    assert engine.stats().prefix_hits > 0


def test_a_causal_bert_is_refused(tmp_path):
    config = transformers.BertConfig(**_SHAPE, is_decoder=True)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is_decoder true is not supported"):
        PoolingEngine(tmp_path)


def test_an_encoder_has_no_cache_and_refuses_what_exceeds_its_positions(tmp_path):
    _checkpoint("bert-mean", tmp_path)
    engine = PoolingEngine(tmp_path)
    assert engine.ready.num_kv_tokens == 0 and engine.ready.max_model_len == 64
    assert engine.vectors([([2] * 64, 0)]).shape == (1, 48)
    assert engine._run([([2] * 65, 0)]) == []
    (failure,) = engine.failures
    assert failure.status == 400 and "65 tokens" in failure.message
