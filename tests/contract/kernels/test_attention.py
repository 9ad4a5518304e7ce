"""Paged attention equals the reference on every mix of rows."""

from __future__ import annotations

import pytest
import torch

from tests.contract.kernels.harness import DTYPES, Implementation, paged_batch, tolerance
from xllm.hardware.kernels import reference

# (tokens in the cache after the step, of which queries) per row
BATCHES = {
    "one token": [(1, 1)],
    "prefill": [(75, 75)],
    "decode rows": [(1, 1), (16, 1), (17, 1), (64, 1), (65, 1), (200, 1)],
    "chunk": [(150, 21)],
    "mixed": [(130, 1), (70, 70), (3, 1), (90, 2), (33, 17)],
    "an empty row": [(20, 1), (20, 0), (40, 5)],
}


def _check(
    implementation: Implementation, batch, dtype, scale=0.125, softcap=0.0, window=0, sinks=None
):
    arguments = (*batch.tensors, scale, softcap, window, batch.max_query_len, sinks)
    actual = implementation.paged_attention(*arguments)
    torch.testing.assert_close(actual, reference.paged_attention(*arguments), **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
def test_rows_and_groups(implementation: Implementation, dtype, rows, heads) -> None:
    _check(implementation, paged_batch(rows, heads=heads, dtype=dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("block_size", [8, 32, 128])
def test_head_dims_and_block_sizes(
    implementation: Implementation, dtype, head_dim, block_size
) -> None:
    batch = paged_batch(BATCHES["mixed"], head_dim=head_dim, block_size=block_size, dtype=dtype)
    _check(implementation, batch, dtype, scale=head_dim**-0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 5, 64, 100])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_window_and_softcap(implementation: Implementation, dtype, window, softcap) -> None:
    rows = [(300, 1), (200, 60), (90, 90), (2, 1)]
    batch = paged_batch(rows, dtype=dtype, window=window)
    _check(implementation, batch, dtype, softcap=softcap, window=window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 64])
def test_sinks(implementation: Implementation, dtype, window) -> None:
    """Between, far above and far below the scores; rows of several splits and of one."""
    rows = [(300, 1), (200, 60), (90, 90), (2, 1), (700, 1)]
    batch = paged_batch(rows, dtype=dtype, window=window)
    sinks = torch.tensor([2.0, -1.0, 1e4, -1e4])
    _check(implementation, batch, dtype, window=window, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_scores_that_grow_along_the_keys(implementation: Implementation, dtype, scale) -> None:
    """Each block of keys holds higher scores than the one before, in steps small and large."""
    batch = paged_batch([(330, 330), (330, 1), (330, 40)], heads=(4, 2), dtype=dtype)
    blocks, block_size = batch.k_cache.shape[:2]
    order = torch.empty(blocks, dtype=torch.long)
    for row in batch.block_table.tolist():
        order[row] = torch.arange(len(row))
    growth = (order[:, None] * block_size + torch.arange(block_size)).float() / 330
    batch.q[..., 1:] *= 0.1
    batch.q[..., 0], batch.k_cache[..., 0] = 1.0, 10 * growth[..., None].to(dtype)
    _check(implementation, batch, dtype, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_context_with_few_heads(implementation: Implementation, dtype) -> None:
    batch = paged_batch([(2500, 1), (1030, 1), (1100, 3)], heads=(3, 1), dtype=dtype)
    _check(implementation, batch, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_the_batch(implementation: Implementation, dtype) -> None:
    rows = [(700, 1), (70, 70), (3, 1), (90, 2), (1400, 1)]
    batch = paged_batch(rows, heads=(9, 3), dtype=dtype)
    whole = implementation.paged_attention(*batch.tensors, 0.125, 0.0, 0, batch.max_query_len)
    starts = batch.query_start_loc.tolist()
    for row in range(len(rows)):
        alone = batch.rows([row])
        out = implementation.paged_attention(*alone.tensors, 0.125, 0.0, 0, alone.max_query_len)
        assert torch.equal(out, whole[starts[row] : starts[row + 1]])


def test_a_prompts_bits_do_not_depend_on_its_chunks(implementation: Implementation) -> None:
    batch = paged_batch([(330, 330)], heads=(9, 3))
    whole = implementation.paged_attention(*batch.tensors, 0.125, 0.0, 0, 330)
    for first, last in ((0, 40), (40, 97), (97, 150), (150, 270), (270, 330)):
        chunk = implementation.paged_attention(
            batch.q[first:last].clone(),
            batch.k_cache,
            batch.v_cache,
            torch.tensor([0, last - first], dtype=torch.int32),
            torch.tensor([last], dtype=torch.int32),
            batch.block_table,
            0.125,
            0.0,
            0,
            last - first,
        )
        assert torch.equal(chunk, whole[first:last])


def test_a_nan_query_is_nan_and_spoils_no_other_row(implementation: Implementation) -> None:
    batch = paged_batch([(70, 1), (70, 1), (20, 3)])
    clean = implementation.paged_attention(*batch.tensors, 0.125)
    batch.q[1] = float("nan")
    out = implementation.paged_attention(*batch.tensors, 0.125, 0.0, 0, 3)
    assert out[1].isnan().all()
    keep = [0, 2, 3, 4]
    assert torch.equal(out[keep], clean[keep])
