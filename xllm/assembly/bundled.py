"""Models that are fetched before they are served, for the doors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from xllm.assembly.resolve import resolve_files
from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress
from xllm.modeling.weights.bundled import BUNDLED, bundled_path


@dataclasses.dataclass(frozen=True, slots=True)
class BundledModel:
    """A model with a short name of ours."""

    name: str
    title: str
    licence: str
    num_bytes: int  # to download
    path: str | None  # where it lies in the cache, if it was pulled


def bundled_models() -> list[BundledModel]:
    """Every short name."""
    return [
        BundledModel(m.name, m.title, m.licence, m.num_bytes, _path(m.name))
        for m in BUNDLED.values()
    ]


def fetch(config: XllmConfig, on_progress: Callable[[EngineProgress], None]) -> str:
    """Bring the files of the config's model here and return their folder. Blocks.

    Raises:
        ValueError: there is no such model, or it could not be fetched.
    """
    return resolve_files(config, on_progress).folder


def _path(name: str) -> str | None:
    found = bundled_path(name)
    return str(found) if found is not None else None
