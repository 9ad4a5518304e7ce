"""Serving families by name: each is a module of ``families`` with a ``build`` function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress
from xllm.core.utils.registry import Registry

if TYPE_CHECKING:
    from xllm.assembly.families.llm import ServingStack
    from xllm.assembly.process.spawn import SpawnedEngine

FAMILIES = Registry("xllm.assembly.families", "serving family")


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
