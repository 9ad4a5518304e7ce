"""Causal attention over the paged cache, one row of the batch at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    max_query_len: int = 1,
    sinks: Tensor | None = None,
) -> Tensor:
    """See ``ops.paged_attention``. Tokens outside every row come out as zeros."""
    out = torch.zeros_like(q)
    starts = query_start_loc.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        queries = slice(starts[row], starts[row + 1])
        if starts[row + 1] > starts[row]:
            keys = _visible(k_cache, block_table[row], length)
            values = _visible(v_cache, block_table[row], length)
            out[queries] = _attend(q[queries], keys, values, scale, softcap, window, sinks)
    return out.flatten(1)


def _visible(cache: Tensor, blocks: Tensor, length: int) -> Tensor:
    """The first ``length`` tokens of one row, (length, Hk, D) in float32."""
    block_size = cache.shape[1]
    needed = blocks[: -(-length // block_size)].long()
    return cache[needed].flatten(0, 1)[:length].float()


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    softcap: float,
    window: int,
    sinks: Tensor | None,
) -> Tensor:
    """q (Q, Hq, D), the last Q of the row's L positions; keys, values (L, Hk, D) -> (Q, Hq, D)."""
    queries, num_q_heads = q.shape[:2]
    length, num_kv_heads = keys.shape[:2]
    group = num_q_heads // num_kv_heads
    grouped = q.float().unflatten(1, (num_kv_heads, group))
    scores = torch.einsum("qhgd,lhd->hgql", grouped, keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(length - queries, length, device=q.device)[:, None]
    key_at = torch.arange(length, device=q.device)
    hidden = key_at > at
    if window:
        hidden |= key_at <= at - window
    scores = scores.masked_fill(hidden, float("-inf"))
    # Stale cache entries may hold anything, also NaN, which a zero weight would not cancel.
    used = ~hidden.all(dim=0)
    values = torch.where(used[:, None, None], values, 0.0)
    if sinks is not None:
        column = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, queries, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., :length]
    out = torch.einsum("hgql,lhd->qhgd", weights, values)
    return out.flatten(1, 2).to(q.dtype)
