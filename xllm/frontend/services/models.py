"""``/v1/models``."""

from __future__ import annotations

import time

from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.models import ModelCard, ModelList


class ModelService:
    """Describes the served model and its adapters.

    Args:
        served: their names in the API.
        max_model_len: the context length in tokens.
        task: what the model is served for; see ``ModelCard``.
        root: what the model was loaded from.
    """

    def __init__(
        self, served: ServedModels, max_model_len: int, task: str, root: str | None = None
    ) -> None:
        self._served = served
        self._created = int(time.time())
        self._max_model_len = max_model_len
        self._task = task
        self._root = root or served.name

    def list(self) -> ModelList:
        """Every name that a request's ``model`` may have, the model itself first."""
        cards = [self._card(self._served.name, self._root)]
        for name, adapter in self._served.adapters.items():
            cards.append(self._card(name, adapter.folder, parent=self._served.name))
        return ModelList(cards)

    def get(self, name: str) -> ModelCard:
        """One of them.

        Raises:
            RequestError: 404; it is not served.
        """
        # A path keeps the slash that follows the route; names may begin with one.
        for card in self.list().data:
            if card.id.lstrip("/") == name.lstrip("/"):
                return card
        self._served.adapter(name)
        raise AssertionError("a name that is served has a card")

    def _card(self, name: str, root: str, parent: str | None = None) -> ModelCard:
        return ModelCard(
            id=name,
            created=self._created,
            max_model_len=self._max_model_len,
            root=root,
            task=self._task,
            parent=parent,
        )
