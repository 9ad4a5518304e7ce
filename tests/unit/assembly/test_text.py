"""The text side of a model folder, as the server and the offline API load it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.fakes import tokenizers as fakes
from xllm.assembly.text import load_text
from xllm.core.config import ModelConfig, XllmConfig
from xllm.core.config.files import ModelFiles, PoolingSpec
from xllm.core.messages.server import EngineReady
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.params import completion_params
from xllm.frontend.protocol import CompletionRequest

MODEL = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    fakes.byte_level()._backend.save(str(tmp_path / "tokenizer.json"))
    return ModelFiles(
        name="m",
        folder=str(tmp_path),
        config={},
        format="dummy",
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        generation_config=MODEL,
    )


def params(files: ModelFiles, option: str, **fields: object) -> SamplingParams:
    config = XllmConfig(model=ModelConfig(model=files.folder, generation_config=option))
    body = CompletionRequest(prompt="x", **fields)  # type: ignore[arg-type]
    return completion_params(body, load_text(config, files).defaults)


def test_a_request_without_sampling_fields_takes_the_models_or_else_the_apis(
    files: ModelFiles,
) -> None:
    """SAM-29."""
    found = params(files, "auto")
    assert {name: getattr(found, name) for name in MODEL} == MODEL
    plain = params(files, "none")
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (1.0, 1.0, 0, 0.0)
    assert plain.repetition_penalty == 1.0


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_request_switches_the_models_filter_off(files: ModelFiles, top_k: int) -> None:
    """SAM-29: zero is a value, not the lack of one."""
    found = params(files, "auto", top_k=top_k, temperature=0, min_p=0)
    assert found.top_k in (0, -1) and (found.temperature, found.min_p) == (0.0, 0.0)
    assert found.top_p == 0.9


@pytest.mark.parametrize(
    ("template", "task", "found"),
    [
        ("{{ messages }}", None, "chat"),
        (None, None, "generate"),
        ("{{ messages }}", "embed", "embed"),
        (None, "classify", "classify"),
    ],
)
def test_only_a_generator_with_a_template_chats(
    files: ModelFiles, template: str | None, task: str | None, found: str
) -> None:
    pooling = task and PoolingSpec(task=task, method="last", whole_prompts=False, size=4)
    files = dataclasses.replace(files, chat_template=template, pooling=pooling or None)
    text = load_text(XllmConfig(), files)
    assert text.request_factory(XllmConfig(), EngineReady("m", 256, 300, 64, 1.0)).task == found
