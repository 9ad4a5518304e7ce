"""Random inputs of the ops and what counts as equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One way to run the ops: ``implementation.rms_norm(...)``."""

    name: str
    ops: dict[str, Callable[..., Any]]

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return self.ops[op]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Of a float32 sum in another order; of bfloat16 results, some roundings either way."""
    if dtype == torch.float32:
        return {"rtol": 3e-5, "atol": 3e-5}
    return {"rtol": 2e-2, "atol": 2e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclasses.dataclass(frozen=True)
class PagedBatch:
    """Arguments of ``paged_attention`` up to the block table, and the longest query."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All but ``max_query_len``, in the order of the op."""
        return (
            *(self.q, self.k_cache, self.v_cache),
            *(self.query_start_loc, self.seq_lens, self.block_table),
        )

    def rows(self, chosen: Sequence[int]) -> PagedBatch:
        """The batch of these rows alone, over the same cache."""
        starts = self.query_start_loc.tolist()
        q = torch.cat([self.q[starts[r] : starts[r + 1]] for r in chosen])
        lens = [starts[r + 1] - starts[r] for r in chosen]
        return dataclasses.replace(
            self,
            q=q,
            query_start_loc=_starts(lens),
            seq_lens=self.seq_lens[chosen],
            block_table=self.block_table[chosen],
            max_query_len=max(lens),
        )


def paged_batch(
    rows: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
) -> PagedBatch:
    """Rows of (tokens in the cache, of which queries). Blocks are shuffled; every entry that no
    query may see is NaN: behind the length, in the padding block, left of the window."""
    generator = torch.Generator().manual_seed(len(rows))
    counts = [-(-length // block_size) for length, _ in rows]
    total = sum(counts) + 1
    cache = torch.full((2, total, heads[1], block_size, head_dim), float("nan"))
    order = (torch.randperm(total - 1, generator=generator) + 1).int()
    table = torch.zeros(len(rows), max(counts) + 1, dtype=torch.int32)
    used = 0
    for row, (length, queries) in enumerate(rows):
        table[row, : counts[row]] = order[used : used + counts[row]]
        used += counts[row]
        first = max(0, length - queries - window + 1) if window else 0
        for p in range(first, length):
            block = int(table[row, p // block_size])
            values = torch.randn(2, heads[1], head_dim, generator=generator)
            cache[:, block, :, p % block_size] = values
        # A stale entry may name any block, also one that no longer exists for this row.
        table[row, : first // block_size] = 0
    cache = cache.to(dtype)
    query_lens = [queries for _, queries in rows]
    return PagedBatch(
        torch.randn(sum(query_lens), heads[0], head_dim, generator=generator).to(dtype),
        cache[0].transpose(1, 2),
        cache[1].transpose(1, 2),
        _starts(query_lens),
        torch.tensor([length for length, _ in rows], dtype=torch.int32),
        table,
        max(query_lens),
    )


def _starts(lens: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lens]).cumsum(0).int()
