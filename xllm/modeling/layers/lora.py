"""Low-rank additions to linear layers, several adapters in one batch.

``y = W x + scale * B (A x)`` (Hu et al. 2021, arXiv:2106.09685). Each loaded adapter has a slot; a
layer keeps its matrices of all slots, so loading one copies weights and changes no shape.
Shapes: T tokens, K input features, N output features, R the largest rank, P parts of a merged
projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from xllm.modeling.layers.embedding import Head
from xllm.modeling.layers.linear import Linear


@dataclasses.dataclass(frozen=True, slots=True)
class LowRank:
    """One module's weights in one adapter: ``a`` (r, K), ``b`` (N, r) with the scale in it."""

    a: Tensor
    b: Tensor


class AdapterBatch:
    """Which tokens of the running step use which slot; every adapted layer reads the same one."""

    def __init__(self) -> None:
        self.groups: Sequence[tuple[int, Tensor]] = ()  # slot, its tokens (n,) int64


class LinearAdapters:
    """The low-rank matrices of one linear layer, of all slots."""

    def __init__(self, layer: Linear, batch: AdapterBatch, num_slots: int, max_rank: int) -> None:
        rows = [rows for _, rows in layer.shards or (("", layer.out_features),)]
        ends = torch.tensor(rows).cumsum(0).tolist()
        self._parts = [slice(end - size, end) for end, size in zip(ends, rows, strict=True)]
        self._batch = batch
        self._a = torch.zeros(num_slots, len(rows), max_rank, layer.in_features, dtype=layer.dtype)
        self._b = torch.zeros(num_slots, layer.out_features, max_rank, dtype=layer.dtype)

    def set(self, slot: int, part: int, weights: LowRank) -> None:
        """Load one part's matrices into a slot."""
        rank = weights.a.shape[0]
        self._a[slot, part, :rank].copy_(weights.a)
        self._b[slot, self._parts[part], :rank].copy_(weights.b)

    def clear(self, slot: int) -> None:
        """Make a slot add nothing."""
        self._a[slot].zero_()
        self._b[slot].zero_()

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        """out (T, N) + the additions of x (T, K), in place."""
        for slot, tokens in self._batch.groups:
            own = x[tokens]
            for part, columns in enumerate(self._parts):
                low = own @ self._a[slot, part].T
                out[tokens, columns] += low @ self._b[slot, columns].T
        return out


class ModelAdapters:
    """Adapters of a model: finds the layers, gives out slots.

    Args:
        model: every ``Linear`` in it but the head can be adapted.
        num_slots: adapters loaded at once.
        max_rank: largest rank of one.
    """

    def __init__(self, model: nn.Module, num_slots: int, max_rank: int) -> None:
        self.batch = AdapterBatch()
        self._max_rank = max_rank
        self._layers: list[LinearAdapters] = []
        # Checkpoint path of each part: the layer, its adapters, the part's index.
        self._parts: dict[str, tuple[Linear, LinearAdapters, int]] = {}
        for path, layer in model.named_modules():
            if not isinstance(layer, Linear) or isinstance(layer, Head):
                continue  # the head sees other rows than the batch's tokens
            adapters = LinearAdapters(layer, self.batch, num_slots, max_rank)
            layer.adapters = adapters
            self._layers.append(adapters)
            parent, _, own_name = path.rpartition(".")
            for part, (name, _) in enumerate(layer.shards or ((own_name, 0),)):
                self._parts[f"{parent}.{name}"] = (layer, adapters, part)
        self._slots: dict[int, int] = {}  # adapter -> slot
        self._free = list(range(num_slots))[::-1]

    def load(self, adapter: int, weights: Mapping[str, LowRank]) -> None:
        """Load an adapter, all of it or nothing.

        Args:
            adapter: the number that rows will name it by.
            weights: by checkpoint path of the module, such as ``model.layers.0.mlp.down_proj``.

        Raises:
            ValueError: no slot is free, or a module or shape does not fit the model.
        """
        assert adapter not in self._slots
        if not self._free:
            raise ValueError(f"--max-loras allows no more than the {len(self._slots)} loaded now")
        for path, low_rank in weights.items():
            self._check(path, low_rank)
        slot = self._free.pop()
        self._slots[adapter] = slot
        for path, low_rank in weights.items():
            _, adapters, part = self._parts[path]
            adapters.set(slot, part, low_rank)

    def unload(self, adapter: int) -> None:
        """Free an adapter's slot. No row may use it."""
        slot = self._slots.pop(adapter)
        for layer in self._layers:
            layer.clear(slot)
        self._free.append(slot)

    def slot(self, adapter: int) -> int:
        """Slot of a loaded adapter, -1 for the plain model (adapter 0)."""
        return self._slots[adapter] if adapter else -1

    def check(self) -> None:
        """Assert that every slot is free or has one adapter."""
        used = list(self._slots.values())
        assert sorted(used + self._free) == list(range(len(used) + len(self._free)))

    def _check(self, path: str, weights: LowRank) -> None:
        if path not in self._parts:
            raise ValueError(
                f"the adapter changes {path}, which the model does not have or cannot adapt"
            )
        layer, _, part = self._parts[path]
        rank = weights.a.shape[0]
        rows = layer.shards[part][1] if layer.shards else layer.out_features
        if rank > self._max_rank:
            raise ValueError(f"the adapter's rank must be at most {self._max_rank}, got {rank}")
        expected = (rank, layer.in_features), (rows, rank)
        found = tuple(weights.a.shape), tuple(weights.b.shape)
        if found != expected:
            raise ValueError(f"{path}: shapes must be {expected}, the adapter has {found}")
