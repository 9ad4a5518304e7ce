"""Which rows use which adapter, and loading adapters between steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from xllm.core.config import LoraConfig
from xllm.core.messages.worker import NewRows, StepPlan
from xllm.core.utils.arrays import Int64Array
from xllm.execution.transfer import to_device
from xllm.modeling.layers.lora import LowRank, ModelAdapters
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.weights.adapter import read_adapter


@dataclasses.dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter as it was read, on the host."""

    by_module: Mapping[str, LowRank]


class RowAdapters:
    """Slots of the persistent rows, and the model's adapters behind them.

    Args:
        config: how many adapters of which rank.
        model: a loaded model on ``device``.
        max_rows: rows of the persistent tables.
    """

    def __init__(
        self, config: LoraConfig, model: CausalLM, max_rows: int, device: torch.device
    ) -> None:
        with device:
            self._model = ModelAdapters(model, config.max_loras, config.max_lora_rank)
        self._renames = model.renames
        self._device = device
        self._slots: Int64Array = np.full(max_rows, -1, np.int64)

    def read(self, folder: str) -> AdapterWeights:
        """Read an adapter's files. On any thread.

        Raises:
            ValueError: they cannot be read.
        """
        return AdapterWeights(read_adapter(folder, self._renames))

    def load(self, adapter: int, weights: AdapterWeights) -> None:
        """Load an adapter.

        Raises:
            ValueError: it does not fit the model, or no slot is free.
        """
        self._model.load(adapter, weights.by_module)

    def unload(self, adapter: int) -> None:
        """Forget an adapter that no row uses."""
        self._model.unload(adapter)

    def start(self, new: NewRows) -> None:
        """Remember the slots of rows that start."""
        self._slots[new.rows] = -1
        if new.adapters is not None:
            slots = [self._model.slot(adapter) for adapter in new.adapters.tolist()]
            self._slots[new.rows] = slots

    def select(self, plan: StepPlan) -> bool:
        """Tell the layers which tokens of the step have an adapter; False if none has."""
        slots = self._slots[plan.rows]
        tokens = np.repeat(slots, plan.num_scheduled)
        self._model.batch.groups = [
            (slot, to_device(np.flatnonzero(tokens == slot), self._device))
            for slot in np.unique(slots[slots >= 0]).tolist()
        ]
        return bool(self._model.batch.groups)

    def check(self) -> None:
        """Assert that slots are given out once."""
        self._model.check()
