"""Random paged batches for attention tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class PagedBatch:
    """Arguments of ``ops.paged_attention`` up to the block table, plus the longest query."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.query_start_loc,
            self.seq_lens,
            self.block_table,
        )


def paged_batch(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> PagedBatch:
    """A batch whose blocks are shuffled and whose unused cache entries are NaN."""
    generator = torch.Generator().manual_seed(seed)
    per_row = [-(-n // block_size) for n in seq_lens]
    total = sum(per_row) + 1
    shape = (total, 2, heads[1], block_size, head_dim)
    cache = torch.full(shape, float("nan"))
    order = torch.randperm(total - 1, generator=generator) + 1
    table = torch.zeros(len(seq_lens), max(per_row, default=0) + 1, dtype=torch.int32)
    used = 0
    for row, (count, length) in enumerate(zip(per_row, seq_lens, strict=True)):
        blocks = order[used : used + count]
        table[row, :count] = blocks.int()
        used += count
        for i, block in enumerate(blocks.tolist()):
            filled = min(block_size, length - i * block_size)
            values = torch.randn(2, heads[1], filled, head_dim, generator=generator)
            cache[block, :, :, :filled] = values
    tokens = sum(query_lens)
    q = torch.randn(tokens, heads[0], head_dim, generator=generator)
    cache = cache.to(device=device, dtype=dtype)
    starts = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return PagedBatch(
        q.to(device=device, dtype=dtype),
        cache[:, 0].transpose(1, 2),
        cache[:, 1].transpose(1, 2),
        starts.to(device),
        torch.tensor(seq_lens, dtype=torch.int32, device=device),
        table.to(device),
        max(query_lens, default=0),
    )
