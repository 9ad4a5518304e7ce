"""From what was asked for to what is there: the model's files, before any process exists."""

from __future__ import annotations

from collections.abc import Callable

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.server import EngineProgress
from xllm.modeling.weights.source import resolve_model


def resolve_files(config: XllmConfig, on_progress: Callable[[EngineProgress], None]) -> ModelFiles:
    """The model's local files, downloaded if need be. Blocks; imports no torch.

    Raises:
        ValueError: there is no such model, or a file of it is missing or not supported.
        RuntimeError: a bundled model could not be fetched.
    """

    def on_bytes(what: str, done: int, total: int) -> None:
        on_progress(EngineProgress(what, done / total if total else -1.0))

    return resolve_model(config.model, on_bytes)
