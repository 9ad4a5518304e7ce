"""Paged attention over a batch that may mix decode rows and chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from xllm.hardware.kernels.shared_prefix import SharedPrefix
from xllm.hardware.kernels.triton.decode_attention import decode_attention
from xllm.hardware.kernels.triton.prefill_attention import prefill_attention


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
    prefix: SharedPrefix | None = None,
) -> Tensor:
    """See ``ops.paged_attention``. Tokens outside every row are left unwritten.

    Args:
        prefix: leading blocks that decode rows share; only for batches without longer queries.
    """
    tokens, heads, head_dim = q.shape
    assert q.stride(2) == 1 and k_cache.stride(3) == 1 and v_cache.stride(3) == 1
    out = torch.empty((tokens, heads * head_dim), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    batch = (query_start_loc, seq_lens, block_table, scale, softcap, window)
    decode_attention(q, k_cache, v_cache, *batch, out, sinks=sinks, prefix=prefix)
    if max_query_len > 1:
        prefill_attention(q, k_cache, v_cache, *batch, out, sinks=sinks)
    return out
