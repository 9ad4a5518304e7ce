"""The unmodified ``lm_eval`` package scores the server as transformers scores the model."""

import json

import pytest
import torch
import transformers
from harness import KEY, running

from tests.contract.models.harness import reference_logits, tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model

DOCUMENTS = [
    {"question": "The sky is", "choices": [" blue", " a cup of tea"], "answer": 0},
    {"question": "Two and two make", "choices": [" five", " four", " fish"], "answer": 1},
]


@pytest.mark.slow
def test_loglikelihoods_are_those_of_the_model(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hub"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        monkeypatch.setenv(name, "1")
    # Read from the environment when it was imported, maybe long ago.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    lm_eval = pytest.importorskip("lm_eval")
    folder = write_tiny_model(tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = False
    model = tiny_checkpoint(config, folder)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    task = {
        "task": "tiny",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    with running(folder, "--load-format", "safetensors", "--dtype", "float32") as server:
        results = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": "tiny",
                "base_url": f"http://127.0.0.1:{server.port}/v1/completions",
                "tokenizer": str(folder),
                "num_concurrent": 1,
            },
            tasks=[task],
            log_samples=True,
            bootstrap_iters=0,
        )
    samples = results["samples"]["tiny"]
    assert len(samples) == len(DOCUMENTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for sample in samples:
        document = sample["doc"]
        for choice, scored in zip(document["choices"], sample["filtered_resps"], strict=True):
            expected = _score(model, tokenizer, document["question"], choice)
            assert float(scored[0]) == pytest.approx(expected[0], abs=1e-3)
            assert (scored[1] in (True, "True")) == expected[1]


def _score(model, tokenizer, context, continuation):
    """Log-likelihood of a continuation, and whether greedy decoding would write it."""
    start = tokenizer(context, add_special_tokens=False)["input_ids"]
    ids = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
    logprobs = reference_logits(model, ids).log_softmax(-1)[len(start) - 1 : -1]
    targets = torch.tensor(ids[len(start) :])
    greedy = bool((logprobs.argmax(-1) == targets).all())
    return float(logprobs.gather(1, targets[:, None]).sum()), greedy
