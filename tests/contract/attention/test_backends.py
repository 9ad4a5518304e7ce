"""Every attention backend equals plain attention over the rows' own keys.

A backend joins this table by existing; one whose device is absent is skipped.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from xllm.hardware.kernels import ops
from xllm.modeling.attention import AttentionMetadata, ForwardContext, load_backend
from xllm.modeling.attention_backends import BACKENDS

BLOCK = 4
HEAD_DIM = 16


@dataclasses.dataclass
class Layer:
    layer_id: int = 0
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = HEAD_DIM
    scale: float = 0.3
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


# (tokens in the cache after the step, of which this step computes) per row
BATCHES = {
    "one token": [(1, 1)],
    "prefill": [(13, 13)],
    "decode rows": [(1, 1), (9, 1), (16, 1), (30, 1)],
    "chunk over a block border": [(11, 5)],
    "decode and chunks": [(17, 1), (12, 12), (22, 7), (3, 1)],
}
LAYERS = {
    "grouped": Layer(),
    "one kv head": Layer(num_kv_heads=1),
    "no groups": Layer(num_kv_heads=4),
    "window 4 (ME-06)": Layer(window=4),
    "window 1": Layer(window=1),
    "softcap": Layer(softcap=2.0),
    "window and softcap": Layer(window=6, softcap=2.0),
    "sinks": Layer(sinks=torch.tensor([1.5, -2.0, 0.0, 3.0])),
    "sinks far above and below every score": Layer(sinks=torch.tensor([1e4, -1e4, 90.0, -90.0])),
    "sinks and window": Layer(window=4, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


# The torch backend is as good as the op below it: both implementations stand in the table.
_PLATFORMS = {"torch": ("reference", "cpu")}


@pytest.fixture(
    params=[
        (name, platform)
        for name in BACKENDS.names()
        for platform in _PLATFORMS.get(name, ("reference",))
    ],
    ids="-".join,
)
def backend(request):
    name, platform = request.param
    try:
        found = load_backend(name)
    except (ImportError, ValueError) as error:  # its library or its GPU is absent
        pytest.skip(str(error))
    if found.device_type != "cpu" and not torch.accelerator.is_available():
        pytest.skip(f"no {found.device_type} device")
    ops.use_platform(platform)
    yield found
    ops.use_platform("reference")


def expected(q: Tensor, keys: Tensor, values: Tensor, layer: Layer) -> Tensor:
    """q (n, Hq, D) are the last n positions of keys (L, Hk, D)."""
    group = layer.num_heads // layer.num_kv_heads
    keys, values = (t.double().repeat_interleave(group, dim=1) for t in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * layer.scale
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    length, count = keys.shape[0], q.shape[0]
    query_at = torch.arange(length - count, length)[:, None]
    key_at = torch.arange(length)[None, :]
    hidden = key_at > query_at
    if layer.window:
        hidden |= key_at <= query_at - layer.window
    scores = scores.masked_fill(hidden, -math.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks[:, None, None].expand(-1, count, 1)), dim=-1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def run(backend, batch, layer: Layer, dtype=torch.float32, scale_keys: float = 1.0):
    """The backend's output and the expected one, over scattered blocks; stale ones are NaN."""
    generator = torch.Generator().manual_seed(0)
    order = torch.Generator().manual_seed(1)
    num_blocks = 1 + sum(-(-length // BLOCK) for length, _ in batch)
    free = (1 + torch.randperm(num_blocks - 1, generator=order)).tolist()
    shape = backend.kv_cache_shape(num_blocks, BLOCK, layer.num_kv_heads, HEAD_DIM)
    cache = torch.full(shape, math.nan, dtype=dtype)
    k_cache, v_cache = backend.kv_views(cache)
    width = max(-(-length // BLOCK) for length, _ in batch)
    table = torch.zeros(len(batch), width, dtype=torch.int32)
    queries, wanted = [], []
    for row, (length, count) in enumerate(batch):
        keys, values = (
            torch.randn(length, layer.num_kv_heads, HEAD_DIM, generator=generator).to(dtype)
            for _ in range(2)
        )
        keys = keys * scale_keys
        q = torch.randn(count, layer.num_heads, HEAD_DIM, generator=generator).to(dtype)
        oldest = max(length - count - layer.window + 1, 0) if layer.window else 0
        for start in range(oldest // BLOCK * BLOCK, length, BLOCK):
            block = table[row, start // BLOCK] = free.pop()
            part = slice(start, min(start + BLOCK, length))
            k_cache[block, : part.stop - start] = keys[part]
            v_cache[block, : part.stop - start] = values[part]
        queries.append(q)
        wanted.append(expected(q, keys, values, layer))
    counts = [count for _, count in batch]
    device = backend.device_type
    if layer.sinks is not None:
        layer = dataclasses.replace(layer, sinks=layer.sinks.to(device))
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32),
        seq_lens=torch.tensor([length for length, _ in batch], dtype=torch.int32).to(device),
        block_table=table.to(device),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=device),
        max_query_len=max(counts),
    )
    backend.plan(metadata)
    context = ForwardContext((metadata,), [backend.kv_views(cache.to(device))], (0,), backend)
    output = backend.forward(torch.cat(queries).to(device), layer, context)
    return output.cpu(), torch.cat(wanted)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("layer", LAYERS)
def test_output_equals_plain_attention(backend, layer, batch):
    output, wanted = run(backend, BATCHES[batch], LAYERS[layer])
    torch.testing.assert_close(output, wanted.float(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_follows_float(backend, dtype):
    output, wanted = run(backend, BATCHES["decode and chunks"], Layer(), dtype)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_capped_scores_stay_finite_at_extremes(backend, dtype):
    """ME-11: scores far beyond the cap of 50 become 50 or -50, never NaN."""
    layer = Layer(softcap=50.0, scale=1.0)
    output, wanted = run(backend, BATCHES["decode and chunks"], layer, dtype, scale_keys=2000.0)
    torch.testing.assert_close(output.double(), wanted, atol=0.05, rtol=0.02)


def test_rows_do_not_depend_on_the_batch(backend):
    """ME-17: bit for bit, alone or beside others."""
    batch = BATCHES["decode and chunks"]
    together, _ = run(backend, batch, Layer())
    alone, _ = run(backend, batch[:1], Layer())
    assert torch.equal(together[:1], alone)


def test_cache_shape_holds_exactly_the_logical_cache(backend):
    shape = backend.kv_cache_shape(5, BLOCK, 2, HEAD_DIM)
    keys, values = backend.kv_views(torch.zeros(shape))
    assert keys.shape == values.shape == (5, BLOCK, 2, HEAD_DIM)
    assert math.prod(shape) == keys.numel() + values.numel()


def test_unknown_backend_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown attention backend 'x'; known: .*torch"):
        load_backend("x")


def test_a_backend_whose_library_is_missing_is_refused_by_name(monkeypatch):
    def load(name: str):
        raise ModuleNotFoundError("No module named 'triton'")

    monkeypatch.setattr(BACKENDS, "load", load)
    with pytest.raises(ValueError, match=r"^attention_backend 'fa3': No module named 'triton'$"):
        load_backend("fa3")
