"""Runs the model on one step's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from xllm.execution.executor.inputs import BatchShape, ModelInputs, ModelOutput
from xllm.execution.executor.runners.eager import EagerRunner
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.attention import AttentionBackend, ForwardContext
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.models.pooling import PoolingModel


class Runner(Protocol):
    """One way to launch the model's forward pass, its attention planned: graphs contain that."""

    def can_run(self, shape: BatchShape) -> bool:
        """Whether the runner takes a batch of this shape."""
        ...

    def run(self, inputs: ModelInputs, context: ForwardContext) -> torch.Tensor:
        """Hidden states (T, H) of the batch."""
        ...


class Executor:
    """The model with its KV cache, behind one call per step.

    Args:
        runners: tried before eager execution, first match wins.
    """

    def __init__(
        self,
        model: CausalLM | PoolingModel,
        storage: CacheStorage,
        backend: AttentionBackend,
        runners: Sequence[Runner] = (),
    ) -> None:
        self._model = model
        self._backend = backend
        self._kv_caches = storage.layers
        self._group_of_layer = storage.group_of_layer
        self._runners = (*runners, EagerRunner(model))

    def run(self, inputs: ModelInputs, *, eager: bool = False) -> ModelOutput:
        """Compute the step's hidden states, write its KV, and make the logits that are wanted.

        Args:
            eager: the step is not what graphs have captured.
        """
        hidden = self.forward(inputs, eager=eager)
        wanted = hidden if inputs.logits_index is None else hidden[inputs.logits_index]
        return ModelOutput(hidden, self._narrow_logits(wanted))

    def forward(self, inputs: ModelInputs, *, eager: bool = False) -> torch.Tensor:
        """Compute the step's hidden states (T, H) and write its KV; see ``run``."""
        context = ForwardContext(
            inputs.metadata,
            self._kv_caches,
            self._group_of_layer,
            self._backend,
            inputs.token_types,
        )
        runners = self._runners[-1:] if eager else self._runners
        runner = next(r for r in runners if r.can_run(inputs.shape))
        return runner.run(inputs, context)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(M, H) -> (M, V) float32."""
        assert not isinstance(self._model, PoolingModel)
        return self._model.compute_logits(hidden)

    def _narrow_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert not isinstance(self._model, PoolingModel)
        if not len(hidden):
            return hidden.new_empty((0, self._model.vocab_size))
        return self._model.compute_narrow_logits(hidden)
