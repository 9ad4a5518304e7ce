"""Greedy output on real weights equals transformers' on the same dequantized weights, float32.

Where the two sides' tokens part, the reference's logits of both tokens must lie within
``ROUNDING`` of each other: float32 sums in another order cannot tell them apart. Such a split is
reported as a warning, and comparison of that prompt ends there.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.contract.models.harness import PagedRun, load_tiny, reference_logits, resolve
from xllm.frontend.text.loading import load_tokenizer
from xllm.hardware.kernels import ops
from xllm.modeling.weights.bundled import pull

NUM_TOKENS = 64
ROUNDING = 1e-3
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at 100 degrees because",
    "1, 2, 3, 5, 8, 13,",
)

pytestmark = [pytest.mark.weights, pytest.mark.slow]


@pytest.fixture(scope="session", autouse=True)
def platform():
    """Only what is served: the reference ops take minutes for this."""
    ops.use_platform("cpu")
    yield
    ops.use_platform("reference")


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def models(request):
    path = pull(request.param)
    tokenizer = load_tokenizer(resolve(path))
    return load_tiny(path, max_model_len=1024), _reference(path), tokenizer


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_the_reference(models, prompt):
    model, reference, tokenizer = models
    prompt_ids = tokenizer.encode(prompt)
    expected = _reference_greedy(reference, prompt_ids)
    tokens = _greedy(model, prompt_ids)
    if tokens == expected:
        return
    split = next(i for i in range(NUM_TOKENS) if tokens[i] != expected[i])
    logits = reference_logits(reference, prompt_ids + expected[:split])[-1]
    gap = float(logits[expected[split]] - logits[tokens[split]])
    assert gap <= ROUNDING, f"token {split}: {tokens[split]} for {expected[split]}, gap {gap}"
    warnings.warn(f"{prompt!r}: equal up to token {split}, then a gap of {gap:.1e}", stacklevel=1)


def _reference(path: Path):
    """The reference with weights dequantized by transformers (whose own loader for this needs one
    more package, for nothing that matters here)."""
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    lacking, unknown = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert set(lacking) <= {"lm_head.weight"} and not unknown
    model.tie_weights()
    return model.eval()


def _greedy(model, prompt_ids: list[int]) -> list[int]:
    run = PagedRun(model, block_size=16, max_tokens=128)
    logits = run.step({0: prompt_ids})[0]
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < NUM_TOKENS:
        logits = run.step({0: tokens[-1:]})[0]
        tokens.append(int(logits[-1].argmax()))
    return tokens


def _reference_greedy(reference, prompt_ids: list[int]) -> list[int]:
    output = reference.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=None,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = output[0, len(prompt_ids) :].tolist()
    assert len(tokens) == NUM_TOKENS
    return tokens
