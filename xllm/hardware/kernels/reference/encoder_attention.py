"""Bidirectional attention within each row of the batch, all rows padded to the longest."""

from __future__ import annotations

import torch
from torch import Tensor


def encoder_attention(
    qkv: Tensor, query_start_loc: Tensor, num_heads: int, scale: float, max_query_len: int
) -> Tensor:
    """See ``ops.encoder_attention``. Waits for no device: lengths are read there alone."""
    num_tokens, width = qkv.shape[0], qkv.shape[1] // 3
    starts = query_start_loc[:-1, None].long()
    offsets = torch.arange(max_query_len, device=qkv.device)
    inside = offsets < query_start_loc[1:, None].long() - starts  # (S, L)
    # Places beyond a row's end read token 0, unseen by the others, and write to a spare last row.
    source = torch.where(inside, starts + offsets, 0)
    q, k, v = (
        part.unflatten(-1, (num_heads, -1)).transpose(1, 2).float()
        for part in qkv[source].split(width, dim=-1)
    )
    scores = (q @ k.transpose(-1, -2)) * scale
    # A large number, not infinity: rows without tokens would be 0 / 0.
    scores = scores.masked_fill(~inside[:, None, None, :], -1e30)
    out = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
    target = torch.where(inside, starts + offsets, num_tokens)
    result = out.new_zeros((num_tokens + 1, width))
    result[target] = out
    return result[:num_tokens].to(qkv.dtype)
