"""Which rows and layers the ``fa3`` backend gives to its library. The library is the reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from batches import PagedBatch, paged_batch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.modeling.attention import AttentionMetadata, ForwardContext, fa3


@dataclasses.dataclass
class Layer:
    layer_id: int = 0
    head_dim: int = 16
    scale: float = 0.3
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


class Library:
    """Takes the library's arguments, computes the rows that have queries, counts its calls."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def fwd(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **given: Any) -> None:
        starts, used = given["cu_seqlens_q"].tolist(), given["seqused_q"].tolist()
        assert given["is_causal"] and given["max_seqlen_q"] >= max(used)
        for row, count in enumerate(used):
            if not count:
                continue
            self.rows.append(row)
            tokens = slice(starts[row], starts[row] + count)
            attended = reference.paged_attention(
                q[tokens],
                k,
                v,
                torch.tensor([0, count], dtype=torch.int32),
                given["seqused_k"][row : row + 1],
                given["page_table"][row : row + 1],
                given["softmax_scale"],
                0.0,
                0,
                count,
            )
            out[tokens] = attended.view(out[tokens].shape)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(fa3, "missing", lambda: None)
    monkeypatch.setattr(fa3, "_load", lambda: found.fwd)
    monkeypatch.setattr(fa3, "MIN_TOKENS", 16)
    return found


def _run(batch: PagedBatch, layer: Layer) -> tuple[Tensor, Tensor]:
    """The backend's output and the reference's."""
    backend = fa3.Backend()
    metadata = AttentionMetadata(
        query_start_loc=batch.query_start_loc,
        seq_lens=batch.seq_lens,
        block_table=batch.block_table,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        max_query_len=batch.max_query_len,
    )
    backend.plan(metadata)
    context = ForwardContext((metadata,), [(batch.k_cache, batch.v_cache)], (0,), backend)
    rest = (layer.scale, layer.softcap, layer.window, batch.max_query_len, layer.sinks)
    return backend.forward(batch.q, layer, context), reference.paged_attention(
        *batch.arguments, *rest
    )


def _check(batch: PagedBatch, layer: Layer) -> None:
    actual, expected = _run(batch, layer)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/device has the library itself")
class TestOnACpu:
    def test_rows_of_several_tokens_go_to_the_library(self, library: Library) -> None:
        batch = paged_batch([1, 9, 0, 1, 7], [33, 9, 0, 2, 40], dtype=torch.bfloat16)
        _check(batch, Layer())
        assert library.rows == [1, 4]

    def test_small_batches_and_decode_rows_do_not(self, library: Library) -> None:
        _check(paged_batch([9, 1], [9, 5], dtype=torch.bfloat16), Layer())
        _check(paged_batch([1] * 17, [3] * 17, dtype=torch.bfloat16), Layer())
        assert library.rows == []

    @pytest.mark.parametrize(
        "layer",
        [Layer(window=6), Layer(softcap=2.0), Layer(sinks=torch.tensor([1.0, 2.0, 0.0, -1.0]))],
        ids=["window", "softcap", "sinks"],
    )
    def test_what_the_library_lacks_is_computed(self, library: Library, layer: Layer) -> None:
        _check(paged_batch([18, 1], [30, 5], dtype=torch.bfloat16), layer)
        assert library.rows == []

    def test_float32_and_8_bit_caches_are_computed(self, library: Library) -> None:
        _check(paged_batch([18, 1], [30, 5]), Layer())
        batch = paged_batch([18, 1], [30, 5], dtype=torch.bfloat16)
        caches = {
            "k_cache": batch.k_cache.to(torch.float8_e4m3fn),
            "v_cache": batch.v_cache.to(torch.float8_e4m3fn),
        }
        _check(dataclasses.replace(batch, **caches), Layer())
        assert library.rows == []


def test_a_machine_without_it_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert "compute capability 9" in str(fa3.missing())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(fa3, "_PACKAGE", "no_such_package")
    assert "pip install tokenspeed-fa3" in str(fa3.missing())
    with pytest.raises(ValueError, match="attention_backend 'fa3'"):
        fa3.Backend()
