"""The ``fa3`` backend: FlashAttention-3 for prompts and chunks, ``triton`` for the rest.

FlashAttention-3 reads the paged cache through its block table, so cached prefixes are no special
case, and takes lengths from the device, so mixed graphs capture it. Rows that compute one token
stay with the split decode kernel: they have no query here. What the library cannot do is decided
by values: see ``takes``.

Any build of the library serves whose Python package is ``flash_attn_3``: the extra ``hopper``, or
one's own from the library's sources.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.modeling.attention.base import AttentionLayer, AttentionMetadata, ForwardContext
from xllm.modeling.attention.triton import Backend as TritonBackend

_PACKAGE = "flash_attn_3"
_CAPABILITY = 9  # major; the kernels are written for Hopper's instructions
_MAX_HEAD_DIM = 256
# Below, two launches more a layer cost what the faster kernel gains.
MIN_TOKENS = 256


def missing() -> str | None:
    """Why this machine cannot use the backend; None if it can."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != _CAPABILITY:
        return "it needs a GPU of compute capability 9"
    if importlib.util.find_spec(_PACKAGE) is None:
        return "FlashAttention-3 is not installed (pip install tokenspeed-fa3)"
    try:
        _load()
    except (ImportError, OSError, AttributeError) as error:
        return f"FlashAttention-3 cannot be loaded: {error}"
    return None


def _load() -> Callable[..., Any]:
    importlib.import_module(f"{_PACKAGE}._C")  # registers the op
    return torch.ops.flash_attn_3.fwd


def takes(layer: AttentionLayer, q: Tensor, k_cache: Tensor) -> bool:
    """Whether the library computes such a layer.

    It knows no sinks, and builds leave soft capping out. Of a window it would load blocks that are
    stale, and multiply what is there by zero. An 8-bit cache has another type than its queries.
    """
    return (
        not layer.window
        and not layer.softcap
        and layer.sinks is None
        and q.dtype in (torch.bfloat16, torch.float16)
        and k_cache.dtype == q.dtype
        and layer.head_dim <= _MAX_HEAD_DIM
        and layer.head_dim % 8 == 0
    )


class Backend(TritonBackend):
    """Plans the rows that it takes, on the device.

    Raises:
        ValueError: this machine lacks the GPU or the library.
    """

    def __init__(self) -> None:
        reason = missing()
        if reason is not None:
            raise ValueError(f"attention_backend 'fa3': {reason}")
        self._attend = _load()

    def plan(self, metadata: AttentionMetadata) -> None:
        """Find the rows of several tokens."""
        if metadata.max_query_len > 1:
            lens = metadata.query_start_loc.diff()
            metadata.long_query_lens = lens * (lens > 1)

    def forward(self, q: Tensor, layer: AttentionLayer, context: ForwardContext) -> Tensor:
        metadata = context.metadata[context.group_of_layer[layer.layer_id]]
        k_cache, v_cache = context.kv_caches[layer.layer_id]
        if metadata.max_query_len == 1 or q.shape[0] < MIN_TOKENS or not takes(layer, q, k_cache):
            return super().forward(q, layer, context)
        assert metadata.long_query_lens is not None, "the batch was not planned"
        out = paged_attention(
            q,
            k_cache,
            v_cache,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            layer.scale,
        )
        self._attend(
            q,
            k_cache,
            v_cache,
            out=out.view(q.shape),
            cu_seqlens_q=metadata.query_start_loc,
            seqused_q=metadata.long_query_lens,
            seqused_k=metadata.seq_lens,
            max_seqlen_q=metadata.max_query_len,
            page_table=metadata.block_table,
            softmax_scale=layer.scale,
            is_causal=True,
            num_splits=1,
        )
        return out
