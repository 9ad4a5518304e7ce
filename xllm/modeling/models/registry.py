"""Finds model families by file name: ``models/llm/<model_type>.py``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from xllm.core.utils.registry import Registry

families = Registry("xllm.modeling.models.llm", "model_type")


def resolve(hf_config: dict[str, Any]) -> ModuleType:
    """The module that implements ``hf_config["model_type"]``; it exports ``Model`` and
    ``from_hf_config``.

    Raises:
        ValueError: no ``model_type``, or one that is not implemented; lists those that are.
    """
    model_type = hf_config.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(
            f"config.json: model_type is missing; known: {', '.join(families.names())}"
        )
    return families.load(model_type)
