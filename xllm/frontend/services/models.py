"""``/v1/models``."""

from __future__ import annotations

import time

from xllm.frontend.protocol.models import ModelCard, ModelList
from xllm.frontend.services.shared import check_model


class ModelService:
    """Describes the served model.

    Args:
        model: its name in the API.
        max_model_len: its context length in tokens.
        root: what it was loaded from.
    """

    def __init__(self, model: str, max_model_len: int, root: str | None = None) -> None:
        self._card = ModelCard(
            id=model, created=int(time.time()), max_model_len=max_model_len, root=root or model
        )

    def list(self) -> ModelList:
        """Every served model."""
        return ModelList([self._card])

    def get(self, name: str) -> ModelCard:
        """One model.

        Raises:
            RequestError: 404; it is not served.
        """
        # A path keeps the slash that follows the route; names may begin with one.
        check_model(name.lstrip("/"), self._card.id.lstrip("/"))
        return self._card
