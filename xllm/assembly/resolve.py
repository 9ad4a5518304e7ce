"""From what was asked for to what is there: the model's files, before any process exists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from xllm.control.scheduler.policies import POLICIES
from xllm.control.scheduler.scheduler import PRIORITY_POLICIES
from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.config.lora import ADAPTER_FILES
from xllm.core.messages.server import EngineProgress
from xllm.modeling.attention_backends import BACKENDS
from xllm.modeling.models.config import resolve_max_model_len, text_config
from xllm.modeling.weights.source import resolve_model


def resolve_files(config: XllmConfig, on_progress: Callable[[EngineProgress], None]) -> ModelFiles:
    """The model's local files, downloaded if need be. Blocks; imports no torch.

    Raises:
        ValueError: there is no such model, it cannot be fetched, or a file of it, or of an
            adapter that is loaded at start, is missing or not supported.
    """

    def on_bytes(what: str, done: int, total: int) -> None:
        on_progress(EngineProgress(what, done / total if total else -1.0))

    _check_names(config)
    _check_adapters(config.lora.modules)
    try:
        return resolve_model(config.model, on_bytes)
    except RuntimeError as error:  # a download failed; what to do about it is in the message
        raise ValueError(str(error)) from error


_SMALLEST_DEFAULT_STEP = 2048


def fit_to_model(config: XllmConfig, files: ModelFiles) -> XllmConfig:
    """The configuration that serves this model: prompts that must be computed whole fit one step.

    Raises:
        ValueError: more context was asked for than the model allows.
    """
    spec = files.pooling
    if spec is None:
        return config
    model = config.model
    asked = model.max_model_len
    allowed = resolve_max_model_len(text_config(files.config), asked)
    max_len = allowed if asked or spec.max_len is None else min(allowed, spec.max_len)
    scheduler, cache = config.scheduler, config.cache
    if spec.whole_prompts:
        # Left to the device (0), the step is still no smaller than anywhere.
        budget = max(scheduler.max_num_batched_tokens or _SMALLEST_DEFAULT_STEP, max_len)
        scheduler = dataclasses.replace(
            scheduler, max_num_batched_tokens=budget, enable_chunked_prefill=False
        )
        cache = dataclasses.replace(cache, enable_prefix_caching=False)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, max_model_len=max_len),
        scheduler=scheduler,
        cache=cache,
    )


def _check_names(config: XllmConfig) -> None:
    """Unknown names end here, not after the weights were loaded."""
    scheduler = config.scheduler
    backends = ("auto", *BACKENDS.names())
    for flag, name, known in (
        ("--scheduling", scheduler.scheduling, POLICIES.names()),
        ("--priority-policy", scheduler.priority_policy, PRIORITY_POLICIES),
        ("--attention-backend", config.execution.attention_backend, backends),
    ):
        if name not in known:
            raise ValueError(f"{flag} must be one of {', '.join(known)}, got {name!r}")


def _check_adapters(modules: Mapping[str, str]) -> None:
    """They are loaded last, but a folder without one ends here."""
    for name, folder in modules.items():
        for file in ADAPTER_FILES:
            if not (path := Path(folder) / file).is_file():
                raise ValueError(f"--lora-modules {name}={folder}: there is no file {path}")
