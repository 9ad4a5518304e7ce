"""Bidirectional attention on the CPU: torch's fused kernel, rows of equal length together."""

from __future__ import annotations

import itertools

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def encoder_attention(
    qkv: Tensor, query_start_loc: Tensor, num_heads: int, scale: float, max_query_len: int
) -> Tensor:
    """See ``ops.encoder_attention``. Neighbours of one length share a call; nothing is padded."""
    width = qkv.shape[1] // 3
    out = qkv.new_empty((qkv.shape[0], width))
    starts = query_start_loc.tolist()
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    row = 0
    for length, run in itertools.groupby(lengths):
        count = len(list(run))
        if length:
            part = slice(starts[row], starts[row + count])
            # (rows, L, 3, heads, D) -> three of (rows, heads, L, D)
            split = qkv[part].view(count, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
            attended = scaled_dot_product_attention(split[0], split[1], split[2], scale=scale)
            out[part].view(count, length, num_heads, -1).copy_(attended.transpose(1, 2))
        row += count
    return out
