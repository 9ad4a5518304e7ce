"""The pre-norm decoder that most families share: attention, gated MLP, residual stream.

Module and parameter names follow the community checkpoints, so names need no translation except
for projections that are one matrix here and several there (``layers.linear``).
Shapes: T tokens, H hidden size, M rows whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.attention.base import ForwardContext
from xllm.modeling.layers.attention import Attention
from xllm.modeling.layers.embedding import Embedding, Head
from xllm.modeling.layers.linear import Linear, QKVLinear
from xllm.modeling.layers.mlp import GatedMLP
from xllm.modeling.layers.moe.block import SparseMLP
from xllm.modeling.layers.norm import Reader, RMSNorm
from xllm.modeling.layers.rope_config import RopeConfig
from xllm.modeling.layers.rotary import RotaryTable
from xllm.modeling.models.config import DecoderConfig
from xllm.modeling.quantization.base import QuantMethod


class SelfAttention(nn.Module):
    """Projections around paged attention, with per-head norms where the family has them."""

    def __init__(
        self,
        config: DecoderConfig,
        layer_id: int,
        rotary: RotaryTable,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.qkv_proj = QKVLinear(
            config.hidden_size, *heads, bias=config.qkv_bias, method=method, dtype=dtype
        )
        self.o_proj = Linear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.output_bias,
            method=method,
            dtype=dtype,
        )
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = norm(config, dtype, config.head_dim)
            self.k_norm = norm(config, dtype, config.head_dim)
        self.attn = Attention(
            layer_id,
            *heads,
            rotary,
            scale=config.attention_scale,
            window=config.windows[layer_id],
            softcap=config.attention_softcap,
            sinks=config.attention_sinks,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )

    def forward(self, x: Tokens, positions: Tensor, context: ForwardContext) -> Tensor:
        out: Tensor = self.o_proj(self._heads(x, positions, context))
        return out

    def add_norm(
        self,
        x: Tokens,
        residual: Tensor,
        norm: RMSNorm,
        positions: Tensor,
        context: ForwardContext,
    ) -> tuple[Tokens, Tensor]:
        """``norm.add(self(x, ...), residual)``."""
        return self.o_proj.add_norm(self._heads(x, positions, context), residual, norm)

    def _heads(self, x: Tokens, positions: Tensor, context: ForwardContext) -> Tensor:
        out: Tensor = self.attn(self.qkv_proj(x), positions, context)
        return out


class DecoderLayer(nn.Module):
    """One block. Its first norm belongs to it, but is computed before it, so that each residual
    addition is fused with the norm after it and the product before it."""

    def __init__(
        self,
        config: DecoderConfig,
        layer_id: int,
        rotary: RotaryTable,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        attention = SelfAttention(config, layer_id, rotary, method, dtype)
        feed_forward = mlp(config, layer_id, method, dtype)
        self.input_layernorm = norm(config, dtype, reader=attention.qkv_proj)
        self.self_attn = attention
        self.create_inner_norms(config, dtype, feed_forward.reader)
        self.mlp = feed_forward

    def create_inner_norms(
        self, config: DecoderConfig, dtype: torch.dtype, mlp_reader: Reader | None
    ) -> None:
        """The norms after attention. Families with others override this and ``forward``.

        Args:
            mlp_reader: the layer that alone reads the MLP's input, if there is one.
        """
        self.post_attention_layernorm = norm(config, dtype, reader=mlp_reader)

    def forward(
        self,
        x: Tokens,
        residual: Tensor,
        following: RMSNorm,
        positions: Tensor,
        context: ForwardContext,
    ) -> tuple[Tokens, Tensor]:
        """The normalized input and the residual stream (T, H) -> the new stream, and ``following``
        of it: the norm of the next block, or the last."""
        after = self.post_attention_layernorm
        x, residual = self.self_attn.add_norm(x, residual, after, positions, context)
        return self.mlp.add_norm(x, residual, following)


class Decoder(nn.Module):
    """Embedding, blocks, final norm."""

    def __init__(
        self,
        config: DecoderConfig,
        method: QuantMethod,
        dtype: torch.dtype,
        layer_class: type[DecoderLayer],
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            config.num_rows, config.hidden_size, scale=config.embedding_scale, dtype=dtype
        )
        tables: dict[RopeConfig, RotaryTable] = {
            rope: RotaryTable(rope, config.max_len) for rope in set(config.ropes)
        }
        self.layers = nn.ModuleList(
            layer_class(config, i, tables[rope], method, dtype)
            for i, rope in enumerate(config.ropes)
        )
        self.norm = norm(config, dtype)
        kinds = [
            (window, rope, i in config.dense_layers)
            for i, (window, rope) in enumerate(zip(config.windows, config.ropes, strict=True))
        ]
        # One layer of each kind, and another after it as well as the last norm: together they
        # launch what all layers launch.
        samples = sorted(kinds.index(kind) for kind in set(kinds))
        self._samples = [*samples, samples[-1]]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        context: ForwardContext,
        *,
        rehearsal: bool = False,
    ) -> Tensor:
        layers = [self.layers[i] for i in self._samples] if rehearsal else list(self.layers)
        residual = self.embed_tokens(input_ids)
        norms: list[Any] = [*(layer.input_layernorm for layer in layers), self.norm]
        x = norms[0](residual)
        for layer, following in zip(layers, norms[1:], strict=True):
            x, residual = layer(x, residual, following, positions, context)
        return x


class CausalLM(nn.Module):
    """A decoder and its head. Families set ``layer_class`` and the checkpoint names as data.

    ``renames`` maps parts of checkpoint names to ours: those that begin with a dot anywhere in a
    name, others at its start. ``ignored`` are prefixes of tensors that the model does not use on
    purpose.
    """

    layer_class: type[DecoderLayer] = DecoderLayer
    renames: dict[str, str] = {}
    ignored: tuple[str, ...] = ()

    def __init__(self, config: DecoderConfig, method: QuantMethod, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.model = Decoder(config, method, dtype, self.layer_class)
        self.lm_head = Head(
            config.hidden_size,
            config.num_rows,
            config.vocab_size,
            tied=self.model.embed_tokens if config.tie_word_embeddings else None,
            method=method.for_head(),
            dtype=dtype,
        )
        if config.tie_word_embeddings:  # a head that is stored all the same
            self.ignored = (*self.ignored, "lm_head.weight")

    @property
    def vocab_size(self) -> int:
        """Width of the logits: real tokens, without padding."""
        return self.config.vocab_size

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """input_ids (T,), positions (T,) -> hidden states (T, H); writes the KV caches."""
        hidden: Tensor = self.model(input_ids, positions, context)
        return hidden

    def rehearse(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """``forward`` through one layer of each kind: every kernel is launched, little computed."""
        hidden: Tensor = self.model(input_ids, positions, context, rehearsal=True)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden (M, H) -> logits (M, V) float32."""
        return self.compute_narrow_logits(hidden).float()

    def compute_narrow_logits(self, hidden: Tensor) -> Tensor:
        """The same numbers, in the head's own dtype where nothing is computed on them."""
        logits: Tensor = self.lm_head(hidden)
        cap = self.config.logits_softcap
        return logits.float().div_(cap).tanh_().mul_(cap) if cap else logits


def norm(
    config: DecoderConfig,
    dtype: torch.dtype,
    size: int | None = None,
    reader: Reader | None = None,
) -> RMSNorm:
    """The family's RMS norm over the hidden size, or over ``size``."""
    size = config.hidden_size if size is None else size
    return RMSNorm(size, config.rms_norm_eps, offset=config.norm_offset, dtype=dtype, reader=reader)


def mlp(
    config: DecoderConfig, layer_id: int, method: QuantMethod, dtype: torch.dtype
) -> GatedMLP | SparseMLP:
    """The layer's gated MLP, or its experts.

    Raises:
        ValueError: the experts would have to be quantized, and the method cannot.
    """
    if config.experts is not None and layer_id not in config.dense_layers:
        method.check_experts()
        return SparseMLP(
            config.hidden_size, config.experts, config.activation, method=method, dtype=dtype
        )
    return GatedMLP(
        config.hidden_size,
        config.intermediate_size,
        config.activation,
        bias=config.mlp_bias,
        method=method,
        dtype=dtype,
    )
