"""FlashAttention-3 against the reference, in the engine's layouts, batches and graphs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.modeling.attention import AttentionMetadata, ForwardContext, fa3

BLOCK = 32
WIDTH = 64  # blocks of a row's table


@dataclasses.dataclass
class Layer:
    head_dim: int
    layer_id: int = 0
    scale: float = 0.09
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


# (query tokens, tokens in the cache) per row
BATCHES = {
    "prompts": [(300, 300), (511, 511), (2, 2)],
    "a chunk after a prefix": [(600, 1700)],
    "decode rows, prompts, padding": [(1, 900), (1, 3), (700, 700), (64, 200), (0, 0), (0, 0)],
    "1,024 rows": [(1, 40)] * 1000 + [(30, 50)] * 20 + [(0, 0)] * 4,
}


@pytest.fixture(scope="module")
def backend():
    reason = fa3.missing()
    if reason is not None:
        pytest.skip(reason)
    return fa3.Backend()


class Batch:
    """Rows over shuffled blocks; what no row has written is NaN in keys and values."""

    def __init__(self, backend, heads: int, kv_heads: int, head_dim: int, max_rows: int) -> None:
        self.backend = backend
        self.layer = Layer(head_dim)
        num_blocks = 1 + max_rows * WIDTH if max_rows < 100 else 4096
        shape = backend.kv_cache_shape(num_blocks, BLOCK, kv_heads, head_dim)
        self.cache = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        self.heads = heads
        self.starts = torch.zeros(max_rows + 1, dtype=torch.int32, device="cuda")
        self.lens = torch.zeros(max_rows, dtype=torch.int32, device="cuda")
        self.table = torch.zeros(max_rows, WIDTH, dtype=torch.int32, device="cuda")

    def load(self, rows: list[tuple[int, int]], seed: int = 0) -> Tensor:
        """Fill the cache and the tables; the queries (T, Hq, D)."""
        torch.manual_seed(seed)
        self.cache.fill_(float("nan"))
        views = self.backend.kv_views(self.cache)
        free = (1 + torch.randperm(self.cache.shape[0] - 1)).tolist()
        for row, (_, length) in enumerate(rows):
            for at in range(0, length, BLOCK):
                block = free.pop()
                self.table[row, at // BLOCK] = block
                for view in views:
                    part = view[block, : min(BLOCK, length - at)]
                    part.copy_(torch.randn_like(part))
        counts = torch.tensor([count for count, _ in rows])
        self.starts[1:] = counts.cumsum(0).to("cuda", torch.int32)
        self.lens.copy_(torch.tensor([length for _, length in rows]))
        tokens = int(counts.sum())
        q = torch.randn(tokens, self.heads, self.layer.head_dim, device="cuda")
        return q.to(torch.bfloat16)

    def attend(self, q: Tensor) -> Tensor:
        """What a mixed graph of ``len(q)`` tokens records."""
        metadata = AttentionMetadata(
            query_start_loc=self.starts,
            seq_lens=self.lens,
            block_table=self.table,
            slot_mapping=torch.empty(0, dtype=torch.int64, device="cuda"),
            max_query_len=q.shape[0],
        )
        self.backend.plan(metadata)
        views = [self.backend.kv_views(self.cache)]
        context = ForwardContext((metadata,), views, (0,), self.backend)
        return self.backend.forward(q, self.layer, context)

    def expected(self, q: Tensor) -> Tensor:
        views = self.backend.kv_views(self.cache.nan_to_num())
        batch = (self.starts, self.lens, self.table, self.layer.scale, 0.0, 0, q.shape[0])
        return reference.paged_attention(q, *views, *batch)


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("heads", [(32, 8, 128), (32, 4, 128), (9, 3, 64)], ids=str)
def test_output_equals_the_reference(backend, rows, heads) -> None:
    batch = Batch(backend, *heads, max_rows=len(rows))
    q = batch.load(rows)
    assert q.shape[0] >= fa3.MIN_TOKENS
    torch.testing.assert_close(batch.attend(q), batch.expected(q), rtol=2e-2, atol=2e-2)


def test_a_graph_runs_every_batch_of_its_size(backend) -> None:
    batch = Batch(backend, 32, 8, 128, max_rows=4)
    q = batch.load([(1, 700), (1000, 1000), (20, 500), (3, 3)])
    batch.attend(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = batch.attend(q)
    others = [(500, 900), (1, 64), (100, 100), (0, 0)]  # of 1,024 tokens, 601 used
    q[:601] = batch.load(others, seed=1)
    graph.replay()
    torch.testing.assert_close(out[:601], batch.expected(q[:601]), rtol=2e-2, atol=2e-2)
