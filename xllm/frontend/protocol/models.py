"""``/v1/models``."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct):
    """One served model; ``max_model_len`` is its context length in tokens.

    ``task`` is what it is served for: ``chat`` (completions too), ``generate`` (it has no chat
    template), ``embed`` or ``classify``.
    """

    id: str
    created: int
    max_model_len: int
    root: str
    task: str
    parent: str | None = None  # the model that an adapter adapts
    object: Literal["model"] = "model"
    owned_by: str = "xllm"


class ModelList(msgspec.Struct):
    """Every served model."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
