"""The whole engine answers as transformers does, token for token: float32, greedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from tests.contract.equivalence.tiny_engine import MAX_LEN, TinyEngine, request
from tests.contract.models.harness import resolve, tiny_checkpoint

PROMPTS = (1, 7, 33, 60, 24)
ANSWER = 20
LIVELY = 2.0  # small random models repeat themselves; with matrices twice as large they do not

_SHAPE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "eos_token_id": 2,
}
CONFIGS = {
    "gpt_oss": transformers.GptOssConfig(
        **_SHAPE,
        head_dim=16,
        sliding_window=20,
        intermediate_size=40,
        num_local_experts=6,
        num_experts_per_tok=3,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": MAX_LEN // 4,
            "truncate": False,
        },
    ),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **_SHAPE,
        intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def answered(request, tmp_path_factory):
    """A checkpoint, prompts that share 16 tokens, and the reference's answers."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = tiny_checkpoint(CONFIGS[request.param], folder)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "proj" in name and parameter.dim() > 1:
                parameter.mul_(LIVELY)
    reference.save_pretrained(folder)
    rng = np.random.default_rng(0)
    shared = rng.integers(3, 100, 16).tolist()
    prompts = [shared + rng.integers(3, 100, n).tolist() for n in PROMPTS]
    answers = []
    for prompt in prompts:
        out = reference.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=None
        )
        answers.append(out[0, len(prompt) :].tolist())
    assert all(len(set(answer)) > 3 for answer in answers), "a stuck model proves nothing"
    return resolve(folder), prompts, answers


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("step_tokens", [512, 16], ids=["whole prompts", "chunks"])
def test_answers_equal_the_references(answered, overlap: bool, step_tokens: int):
    """Twice: the second time from the prefix cache."""
    files, prompts, answers = answered
    expected = {(i, 0): answer for i, answer in enumerate(answers)}
    engine = TinyEngine(files, overlap=overlap, step_tokens=step_tokens)
    requests = [request(i, prompt, ANSWER, temperature=0.0) for i, prompt in enumerate(prompts)]
    assert engine.run(requests) == expected
    hits = engine.stats.prefix_hits
    assert engine.run(requests) == expected
    assert engine.stats.prefix_hits > hits
