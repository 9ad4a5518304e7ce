"""Serving families by name: each is a module of this package with a ``build`` function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress
from xllm.core.utils.registry import Registry

if TYPE_CHECKING:
    from xllm.assembly.llm import ServingStack
    from xllm.assembly.spawn import SpawnedEngine

FAMILIES = Registry(
    "xllm.assembly",
    "serving family",
    exclude=(
        *("bundled", "control_link", "engine", "engine_client", "inproc", "launcher", "machine"),
        *("observer", "process_main", "process_start", "registry", "resolve", "spawn"),
        *("stats_log", "text"),
    ),
)


def build(
    config: XllmConfig,
    on_progress: Callable[[EngineProgress], None],
    family: str = "llm",
    spawned: SpawnedEngine | None = None,
) -> ServingStack:
    """Build the serving stack of a family; nothing is loaded before its ``start``.

    Args:
        config: what was asked for.
        on_progress: told of every phase of the start-up.
        family: the kind of model that is served.
        spawned: the engine process, if it runs already.

    Raises:
        ValueError: no such family.
    """
    stack: ServingStack = FAMILIES.load(family).build(config, on_progress, spawned)
    return stack
