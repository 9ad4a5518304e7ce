"""Runs a model over a paged cache by hand, and makes tiny random reference checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from torch import Tensor

from xllm.core.config.files import ModelFiles
from xllm.core.config.model import ModelConfig
from xllm.modeling.attention import (
    AttentionMetadata,
    ForwardContext,
    cache_groups,
    load_backend,
)
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.weights.loader import load_model
from xllm.modeling.weights.source import resolve_model

MAX_TOKENS = 64


class PagedRun:
    """Sequences over shuffled blocks. Block 0 is poisoned: whoever reads padding gets NaN."""

    def __init__(
        self,
        model: CausalLM,
        num_rows: int = 1,
        block_size: int = 4,
        max_tokens: int = MAX_TOKENS,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.cache_dtype = cache_dtype or model.dtype
        self.block_size = block_size
        self.lengths = [0] * num_rows
        self.backend = load_backend("torch")
        self.groups = cache_groups(model, block_size, dtype_bytes=4)
        blocks_per_row = math.ceil(max_tokens / block_size)
        num_blocks = 1 + num_rows * blocks_per_row
        generator = torch.Generator().manual_seed(0)
        self.tables = []
        layers: dict[int, int] = {}
        for index, group in enumerate(self.groups):
            order = 1 + torch.randperm(num_blocks - 1, generator=generator)
            self.tables.append(order.view(num_rows, blocks_per_row).to(torch.int32))
            layers |= dict.fromkeys(group.layers, index)
        self.group_of_layer = tuple(layers[i] for i in range(len(layers)))
        self.caches = [self._cache(self.groups[g].spec, num_blocks) for g in self.group_of_layer]

    @torch.inference_mode()
    def step(self, chunks: dict[int, Sequence[int]]) -> dict[int, Tensor]:
        """Feed each row its next tokens; returns logits (num tokens, V) of every token by row."""
        positions, tokens, counts = [], [], []
        for row, chunk in chunks.items():
            start = self.lengths[row]
            positions.append(torch.arange(start, start + len(chunk)))
            tokens += chunk
            counts.append(len(chunk))
            self.lengths[row] += len(chunk)
        rows = torch.tensor(list(chunks))
        context = ForwardContext(
            metadata=tuple(
                self._metadata(index, rows, positions, counts) for index in range(len(self.groups))
            ),
            kv_caches=self.caches,
            group_of_layer=self.group_of_layer,
            backend=self.backend,
        )
        for metadata in context.metadata:
            self.backend.plan(metadata)
        hidden = self.model(torch.tensor(tokens), torch.cat(positions), context)
        logits = self.model.compute_logits(hidden)
        return dict(zip(chunks, logits.split(counts), strict=True))

    def feed(self, tokens: Sequence[int], chunk_sizes: Sequence[int], row: int = 0) -> Tensor:
        """All of ``tokens`` in chunks, the last size repeating; logits of every token."""
        parts, start, sizes = [], 0, list(chunk_sizes)
        while start < len(tokens):
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            parts.append(self.step({row: tokens[start : start + size]})[row])
            start += size
        return torch.cat(parts)

    def _cache(self, spec, num_blocks: int) -> tuple[Tensor, Tensor]:
        shape = self.backend.kv_cache_shape(
            num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim
        )
        cache = torch.zeros(shape, dtype=self.cache_dtype)
        keys, values = self.backend.kv_views(cache)
        keys[0], values[0] = math.nan, math.nan
        return keys, values

    def _metadata(self, index: int, rows, positions, counts) -> AttentionMetadata:
        table = self.tables[index][rows].clone()
        slots = torch.cat(
            [
                table[i, p // self.block_size].long() * self.block_size + p % self.block_size
                for i, p in enumerate(positions)
            ]
        )
        lengths = [self.lengths[row] for row in rows.tolist()]
        window = self.groups[index].spec.window
        if window is not None:  # blocks that no query sees have been given away
            for i, p in enumerate(positions):
                first_visible = max(int(p[0]) - window + 1, 0)
                table[i, : first_visible // self.block_size] = 0
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        return AttentionMetadata(
            query_start_loc=starts,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=table,
            slot_mapping=slots,
            max_query_len=max(counts),
        )


def tiny_checkpoint(config: transformers.PretrainedConfig, folder: Path, seed: int = 0):
    """A seeded random reference model of ``config``, saved to ``folder``.

    Weights are scaled to keep activations of order one, so that logits differ by more than
    rounding and every parameter, norms included, matters.
    """
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.add_(noise, alpha=0.2)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    model.eval().save_pretrained(folder)
    return model


def load_tiny(folder: Path, **options) -> CausalLM:
    """Our model of a saved checkpoint, float32."""
    return load_model(resolve(folder), dtype=torch.float32, **options)


def resolve(folder: Path, **changes) -> ModelFiles:
    """The files of a folder or GGUF file, with fields replaced."""
    return dataclasses.replace(resolve_model(ModelConfig(model=str(folder))), **changes)


@torch.inference_mode()
def reference_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Logits (num tokens, V) of the reference, in one uncached pass."""
    return model(torch.tensor([list(tokens)])).logits[0].float()
