"""Models that answer a prompt with one vector: what the worker calls, and decoders as such.

Shapes: T tokens, R rows whose prompt ends with the step, H hidden size, D outputs.
"""

from __future__ import annotations

import abc
from typing import Protocol

import torch
from torch import Tensor, nn

from xllm.core.config.files import PoolingSpec
from xllm.modeling.attention.base import ForwardContext
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.pooling import pool
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.quantization.base import QuantMethod


class PooledShape(Protocol):
    """What a pooling model's config must tell."""

    @property
    def max_len(self) -> int:
        """Longest prompt in tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids that the model knows."""
        ...


class PoolingModel(nn.Module, abc.ABC):
    """Base of models without a language-model head."""

    config: PooledShape
    dtype: torch.dtype
    renames: dict[str, str] = {}
    ignored: tuple[str, ...] = ()

    @abc.abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """input_ids (T,), positions (T,) -> hidden states (T, H)."""

    @abc.abstractmethod
    def pool(self, hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Raw vectors (R, D) float32 of rows ``starts[i]:ends[i]`` of ``hidden``.

        An embedding before its norm, or a classifier's logits.
        """


class DecoderPooler(PoolingModel):
    """A decoder without its head: embeddings, or one linear layer of scores on top.

    Checkpoints saved without a head name the decoder's parts without ``model.``.
    """

    def __init__(self, base: CausalLM, spec: PoolingSpec, method: QuantMethod) -> None:
        super().__init__()
        self.config = base.config
        self.dtype = base.dtype
        self.model = base.model
        self.renames = base.renames | {
            f"{part}.": f"model.{part}." for part in ("embed_tokens", "layers", "norm")
        }
        self.ignored = (*base.ignored, "lm_head.")
        self._method = spec.method
        self.score = None
        if spec.task == "classify":
            width = base.config.hidden_size
            self.score = Linear(width, len(spec.labels), method=method, dtype=base.dtype)

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        hidden: Tensor = self.model(input_ids, positions, context)
        return hidden

    def pool(self, hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        vectors = pool(self._method, hidden, starts, ends)
        if self.score is None:
            return vectors
        scores: Tensor = self.score(vectors.to(self.dtype))
        return scores.float()
