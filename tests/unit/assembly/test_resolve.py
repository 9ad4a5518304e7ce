"""Names that do not exist are refused before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xllm.assembly.resolve import resolve_files
from xllm.core.config import ExecutionConfig, LoraConfig, SchedulerConfig, XllmConfig


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            XllmConfig(execution=ExecutionConfig(attention_backend="nope")),
            "--attention-backend must be one of auto, fa3, torch, triton, got 'nope'",
        ),
        (
            XllmConfig(scheduler=SchedulerConfig(scheduling="nope")),
            "--scheduling must be one of decode_first, prefill_first, got 'nope'",
        ),
    ],
)
def test_the_flag_and_the_known_names_are_named(config: XllmConfig, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolve_files(config, lambda progress: None)
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_is_not_there_is_refused_before_a_model_is_looked_for(
    missing: str, tmp_path: Path
) -> None:
    for name in {"adapter_config.json", "adapter_model.safetensors"} - {missing}:
        (tmp_path / name).write_text("{}")
    # The configuration holds values, valid or not; the disk is nothing that it reads.
    config = XllmConfig(lora=LoraConfig(lora_modules=[f"sql={tmp_path}"]))
    with pytest.raises(ValueError) as caught:
        resolve_files(config, lambda progress: pytest.fail(progress.phase))
    path = tmp_path / missing
    assert str(caught.value) == f"--lora-modules sql={tmp_path}: there is no file {path}"


def test_known_names_are_found_without_torch() -> None:
    code = (
        "import sys; from xllm.modeling.attention_backends import BACKENDS;"
        "print('triton' in BACKENDS.names(), 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]
