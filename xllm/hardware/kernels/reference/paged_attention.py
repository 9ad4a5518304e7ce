"""Causal attention over a paged KV cache, row by row in float32."""

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
) -> Tensor:
    """See ``ops.paged_attention``. Gathers each row's keys: the only op that may copy them."""
    del max_query_len
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    out = torch.zeros((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    starts, lens = query_start_loc.tolist(), seq_lens.tolist()
    for row, seq_len in enumerate(lens):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        query_pos = torch.arange(seq_len - (end - begin), seq_len, device=q.device)
        lowest = max(0, int(query_pos[0]) - window + 1) if window else 0
        first_block = lowest // block_size
        blocks = block_table[row, first_block : -(-seq_len // block_size)].long()
        key_pos = torch.arange(first_block * block_size, seq_len, device=q.device)
        k = k_cache[blocks].flatten(0, 1)[: len(key_pos)].float().repeat_interleave(group, dim=1)
        v = v_cache[blocks].flatten(0, 1)[: len(key_pos)].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), k) * scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        visible = key_pos <= query_pos[:, None]
        if window:
            visible &= key_pos > query_pos[:, None] - window
        probs = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        # Keys left of every window may be stale memory: 0 * NaN would spoil the sum.
        v = v.masked_fill(~visible.any(0)[:, None, None], 0.0)
        out[begin:end] = torch.einsum("hqk,khd->qhd", probs, v).to(q.dtype)
    return out.flatten(1)
