"""Cases of ``cuda_kernels`` that compare with another way to the same result: shared prefixes read
once or by every row, tokens chosen with or without a sort, prefill by FlashAttention 3."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import torch

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.shared_prefix import LINE_ROWS, SharedPrefix
from xllm.hardware.kernels.triton import decode_attention as decode
from xllm.hardware.kernels.triton.choose import choose_tokens

Call = tuple[str, Callable[[], object]]


def shared_prefix_calls(make_batch: Callable[..., dict]) -> Iterator[Call]:
    """Rows of 2,048 shared and 96 own tokens."""
    for heads in (32, 16):
        for rows in (32, 64, 256):
            batch = make_batch(rows, 2048 + 96, 32, heads=heads)
            blocks = 2048 // 32
            batch["block_table"][:, :blocks] = batch["block_table"][0, :blocks]
            lens = torch.full_like(batch["seq_lens"], 2048)
            members = torch.arange(rows, dtype=torch.int32, device=lens.device)
            prefix = SharedPrefix(lens, members.view(-1, LINE_ROWS))
            for told in (None, prefix):
                call = lambda b=batch, p=told: decode.decode_attention(  # noqa: E731
                    **b, out=torch.empty_like(b["q"]), prefix=p
                )
                yield f"{heads} heads {rows} rows {'once' if told else 'by each row'}", call


def choose_calls(vocab_size: int, device: torch.device) -> Iterator[Call]:
    """Filters over a large vocabulary."""
    for rows in (1, 64, 256):
        logits = torch.randn(rows, vocab_size, device=device) * 2
        ones = torch.ones(rows, device=device)
        keys = torch.zeros(2, rows, dtype=torch.int32, device=device)
        top_k = torch.full((rows,), 20, device=device)
        for name, filters in (
            ("none", (None, None, None)),
            ("top-k", (None, top_k, None)),
            ("top-p", (None, None, ones * 0.9)),
            ("top-k top-p", (None, top_k, ones * 0.9)),
        ):
            for way, function in (("select", choose_tokens), ("sort", reference.choose_tokens)):
                call = lambda f=function, a=(logits, ones, *filters, keys): f(*a)  # noqa: E731
                yield f"{rows} rows {name} {way}", call


def flash_calls(rows: int, query_len: int, heads: int, kv_heads: int, dim: int) -> Iterator[Call]:
    """FlashAttention 3 over contiguous keys, where its package is installed."""
    if importlib.util.find_spec("fa3_fwd_interface") is None:
        return
    from fa3_fwd_interface import flash_attn_varlen_func

    q, k, v = (
        torch.randn(rows * query_len, h, dim, dtype=torch.bfloat16, device="cuda")
        for h in (heads, kv_heads, kv_heads)
    )
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda") * query_len
    yield (
        "fa3_fwd",
        lambda: flash_attn_varlen_func(q, k, v, starts, starts, query_len, query_len, causal=True),
    )
