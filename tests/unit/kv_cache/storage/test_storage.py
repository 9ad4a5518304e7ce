from __future__ import annotations

import resource

import pytest
import torch

from xllm.kv_cache.layout import CacheGroup, CacheSpec
from xllm.kv_cache.storage import CacheStorage, zeros_on_demand

CPU = torch.device("cpu")


class HeadsFirst:
    """A backend's layout: each head's keys of a block lie together."""

    def kv_cache_shape(self, num_blocks, block_size, num_kv_heads, head_dim):
        return (2, num_blocks, num_kv_heads, block_size, head_dim)

    def kv_views(self, cache):
        return cache[0].transpose(1, 2), cache[1].transpose(1, 2)


def groups() -> tuple[CacheGroup, ...]:
    spec = {"block_size": 4, "num_kv_heads": 2, "head_dim": 8, "dtype_bytes": 2}
    full = CacheSpec(kind="full", **spec)
    sliding = CacheSpec(kind="sliding_window", window=6, **spec)
    return (
        CacheGroup(spec=sliding, layers=(0, 1, 3), num_blocks=5),
        CacheGroup(spec=full, layers=(2,), num_blocks=9),
    )


def test_every_layer_has_the_blocks_of_its_group():
    storage = CacheStorage.allocate(groups(), HeadsFirst(), torch.bfloat16, CPU)
    storage.check()
    assert storage.group_of_layer == (0, 0, 1, 0)
    assert [keys.shape[0] for keys, _ in storage.layers] == [5, 5, 9, 5]
    keys, values = storage.layers[2]
    assert keys.shape == values.shape == (9, 4, 2, 8)
    assert keys.dtype == torch.bfloat16


def test_layers_and_keys_and_values_share_no_memory():
    storage = CacheStorage.allocate(groups(), HeadsFirst(), torch.bfloat16, CPU)
    for number, pair in enumerate(storage.layers):
        for offset, view in enumerate(pair):
            assert not view.any()
            view.fill_(1 + 2 * number + offset)
    for number, (keys, values) in enumerate(storage.layers):
        assert (keys == 1 + 2 * number).all()
        assert (values == 2 + 2 * number).all()


def test_unsized_groups_are_refused():
    unsized = (CacheGroup(spec=groups()[1].spec, layers=(0,)),)
    with pytest.raises(AssertionError, match="sized"):
        CacheStorage.allocate(unsized, HeadsFirst(), torch.bfloat16, CPU)


def test_memory_is_taken_when_it_is_written():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = zeros_on_demand((1 << 30,), torch.bfloat16, CPU)
    tensor[5] = 1
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 << 10
    assert tensor.data_ptr() % 4096 == 0


def test_an_empty_shape_is_fine():
    assert zeros_on_demand((0, 3), torch.int32, CPU).shape == (0, 3)
