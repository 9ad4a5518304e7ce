"""Plain execution, op by op."""

from __future__ import annotations

import torch

from xllm.execution.executor.inputs import BatchShape, ModelInputs
from xllm.modeling.attention import ForwardContext
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.pooling import PoolingModel


class EagerRunner:
    """Calls the model. Takes every batch; the truth that other runners are tested against."""

    def __init__(self, model: CausalLM | PoolingModel) -> None:
        self._forward = model.forward

    def can_run(self, shape: BatchShape) -> bool:
        """Always."""
        return True

    def run(self, inputs: ModelInputs, context: ForwardContext) -> torch.Tensor:
        """Hidden states (T, H)."""
        for metadata in context.metadata:
            context.backend.plan(metadata)
        return self._forward(inputs.input_ids, inputs.positions, context)
