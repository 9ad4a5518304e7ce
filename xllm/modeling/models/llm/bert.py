"""BERT encoders: sentence embeddings, and classifiers over the first token.

Names follow the community checkpoints, with or without the prefix ``bert.``.
Shapes: T tokens, R rows, H hidden size, D outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xllm.core.config.files import PoolingSpec
from xllm.hardware.kernels import ops
from xllm.modeling.attention.base import ForwardContext
from xllm.modeling.layers.embedding import Embedding
from xllm.modeling.layers.layer_norm import LayerNorm
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.pooling import pool
from xllm.modeling.models.config import activation, required
from xllm.modeling.models.pooling import PoolingModel
from xllm.modeling.quantization.base import QuantMethod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig:
    """The encoder's shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    num_types: int
    activation: str
    eps: float
    max_len: int


class BertEmbeddings(nn.Module):
    """Token, position and type embeddings, summed and normalized."""

    def __init__(self, config: BertConfig, dtype: torch.dtype) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, size, dtype=dtype)
        self.position_embeddings = Embedding(config.num_positions, size, dtype=dtype)
        self.token_type_embeddings = Embedding(config.num_types, size, dtype=dtype)
        self.LayerNorm = LayerNorm(size, config.eps, dtype=dtype)

    def forward(self, input_ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        """(T,) each; without ``types`` every token is of type 0."""
        table = self.token_type_embeddings
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = x + (table.weight[0] if types is None else table(types))
        out: Tensor = self.LayerNorm(x)
        return out


class _AddNorm(nn.Module):
    """``LayerNorm(dense(x) + residual)``: the end of both halves of a layer."""

    def __init__(
        self, inputs: int, config: BertConfig, method: QuantMethod, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.dense = Linear(inputs, config.hidden_size, bias=True, method=method, dtype=dtype)
        self.LayerNorm = LayerNorm(config.hidden_size, config.eps, dtype=dtype)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(self.dense(x) + residual)
        return out


class BertAttention(nn.Module):
    """Attention of every token to its whole row, with the residual and norm after it."""

    def __init__(self, config: BertConfig, method: QuantMethod, dtype: torch.dtype) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.scale = (size // config.num_heads) ** -0.5
        shards = [(f"self.{name}", size) for name in ("query", "key", "value")]
        self.qkv = Linear(size, 3 * size, bias=True, method=method, dtype=dtype, shards=shards)
        self.output = _AddNorm(size, config, method, dtype)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        rows = context.metadata[0]
        attended = ops.encoder_attention(
            self.qkv(x), rows.query_start_loc, self.num_heads, self.scale, rows.max_query_len
        )
        out: Tensor = self.output(attended, x)
        return out


class BertLayer(nn.Module):
    """Post-norm attention and feed-forward."""

    def __init__(self, config: BertConfig, method: QuantMethod, dtype: torch.dtype) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.activation = _ACTIVATIONS[config.activation]
        self.attention = BertAttention(config, method, dtype)
        self.intermediate = _dense("intermediate", config.hidden_size, inner, method, dtype)
        self.output = _AddNorm(inner, config, method, dtype)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        x = self.attention(x, context)
        out: Tensor = self.output(self.activation(self.intermediate(x)), x)
        return out


class BertEncoder(nn.Module):
    """The layers in turn."""

    def __init__(self, config: BertConfig, method: QuantMethod, dtype: torch.dtype) -> None:
        super().__init__()
        layers = (BertLayer(config, method, dtype) for _ in range(config.num_layers))
        self.layer = nn.ModuleList(layers)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        for layer in self.layer:
            x = layer(x, context)
        return x


class Model(PoolingModel):
    """The encoder; for classification with the pooler (dense, tanh) and the classifier."""

    renames = {"bert.": ""}

    def __init__(
        self, config: BertConfig, spec: PoolingSpec, method: QuantMethod, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self._method = spec.method
        self.embeddings = BertEmbeddings(config, dtype)
        self.encoder = BertEncoder(config, method, dtype)
        self.ignored = ("embeddings.position_ids", "bert.embeddings.position_ids", "cls.")
        self.classifier = None
        if spec.task == "classify":
            size, num_labels = config.hidden_size, len(spec.labels)
            self.pooler = _dense("pooler", size, size, method, dtype)
            self.classifier = Linear(size, num_labels, bias=True, method=method, dtype=dtype)
        else:
            self.ignored += ("pooler.", "bert.pooler.")

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        x = self.embeddings(input_ids, positions, context.token_types)
        out: Tensor = self.encoder(x, context)
        return out

    def pool(self, hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        vectors = pool(self._method, hidden, starts, ends)
        if self.classifier is None:
            return vectors
        scores: Tensor = self.classifier(self.pooler(vectors.to(self.dtype)).tanh())
        return scores.float()


def pooling_from_hf_config(
    hf_config: dict[str, Any],
    spec: PoolingSpec,
    *,
    method: QuantMethod,
    dtype: torch.dtype,
    max_len: int,
    vocab_size: int | None = None,
) -> Model:
    """Build the model, weights unset.

    Raises:
        ValueError: a field of the config is missing or not supported.
    """
    kind = hf_config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ValueError(f"config.json: position_embedding_type {kind!r} is not supported")
    if hf_config.get("is_decoder"):
        raise ValueError("config.json: is_decoder true is not supported: BERT is an encoder here")
    size, num_heads = (required(hf_config, n) for n in ("hidden_size", "num_attention_heads"))
    if size % num_heads:
        raise ValueError(
            f"config.json: hidden_size ({size}) must be a multiple of num_attention_heads "
            f"({num_heads})"
        )
    config = BertConfig(
        vocab_size=required(hf_config, "vocab_size"),
        hidden_size=size,
        intermediate_size=required(hf_config, "intermediate_size"),
        num_layers=required(hf_config, "num_hidden_layers"),
        num_heads=num_heads,
        num_positions=required(hf_config, "max_position_embeddings"),
        num_types=required(hf_config, "type_vocab_size"),
        activation=activation({"hidden_act": "gelu"} | hf_config),
        eps=float(hf_config.get("layer_norm_eps", 1e-12)),
        max_len=max_len,
    )
    return Model(config, spec, method, dtype)


def _dense(name: str, inputs: int, outputs: int, method: QuantMethod, dtype: torch.dtype) -> Linear:
    """A layer that checkpoints call ``<name>.dense``."""
    shards = ((f"{name}.dense", outputs),)
    return Linear(inputs, outputs, bias=True, method=method, dtype=dtype, shards=shards)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
}
