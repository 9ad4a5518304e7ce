"""KV cache memory in one allocation per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from xllm.kv_cache.layout import CacheGroup
from xllm.kv_cache.storage.zeros import zeros_on_demand


class KVLayoutPolicy(Protocol):
    """How an attention backend wants one layer's cache to lie in memory."""

    def kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        """Physical shape of one tensor that holds a layer's keys and values."""
        ...

    def kv_views(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value views (num_blocks, block_size, Hk, D) of a tensor of that shape."""
        ...


class CacheStorage:
    """The KV caches of all layers. Zeroed, so that stale or padding slots hold finite numbers."""

    def __init__(
        self, groups: tuple[CacheGroup, ...], layers: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        self._groups = groups
        self._layers = layers

    @classmethod
    def allocate(
        cls,
        groups: Sequence[CacheGroup],
        policy: KVLayoutPolicy,
        dtype: torch.dtype,
        device: torch.device,
    ) -> CacheStorage:
        """Allocate every layer of sized groups, laid out as ``policy`` wants it.

        The layer ids of the groups together are ``range(num_layers)``.
        """
        layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for group in groups:
            spec = group.spec
            assert group.num_blocks > 1, "groups must be sized before they are allocated"
            assert spec.dtype_bytes == dtype.itemsize
            shape = policy.kv_cache_shape(
                group.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim
            )
            for layer in group.layers:
                layers[layer] = policy.kv_views(zeros_on_demand(shape, dtype, device))
        assert sorted(layers) == list(range(len(layers)))
        return cls(tuple(groups), [layers[i] for i in range(len(layers))])

    @property
    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Key and value views (num_blocks, block_size, Hk, D) of every layer."""
        return self._layers

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """The index of each layer's group."""
        group_of = {layer: i for i, group in enumerate(self._groups) for layer in group.layers}
        return tuple(group_of[layer] for layer in range(len(self._layers)))

    def check(self) -> None:
        """Assert that every layer's views have their group's shape."""
        for group in self._groups:
            spec = group.spec
            shape = (group.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
            for layer in group.layers:
                keys, values = self._layers[layer]
                assert keys.shape == values.shape == shape, f"layer {layer}: {keys.shape}"
