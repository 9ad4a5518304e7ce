"""``--load-format dummy``: seeded random weights from the config alone."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from xllm.modeling.layers.target import Target

_STD = 0.02
_POOL = (1 << 20) + 7  # odd, so that rows of common widths are no shifts of each other


class DummyCheckpoint:
    """Implements ``Checkpoint`` for whatever the model asks. Each tensor depends on the seed and
    its own name only. Values repeat with a period of about a million: drawing billions of random
    numbers would take longer than everything else at start-up.
    """

    def __init__(self, targets: dict[str, Target], seed: int) -> None:
        self._targets = {name: t for name, t in targets.items() if not t.optional}
        # Drawn on the CPU, so that every device holds the same weights; repeated on the device.
        generator = torch.Generator().manual_seed(seed)
        pool = torch.randn(_POOL, generator=generator, device="cpu").mul_(_STD)
        self._pool = pool.to(torch.get_default_device())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: target.shape for name, target in self._targets.items()}

    def num_bytes(self, name: str) -> int:
        return 4 * math.prod(self._targets[name].shape)

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            target = self._targets[name]
            if target.dummy == "zeros":
                yield name, torch.zeros(target.shape)
            elif target.dummy == "ones":
                yield name, torch.ones(target.shape)
            else:
                yield name, self._random(name, target.shape)

    def _random(self, name: str, shape: tuple[int, ...]) -> Tensor:
        start = zlib.crc32(name.encode()) % _POOL
        count = math.prod(shape)
        pool = self._pool.roll(-start)
        repeats = -(-count // _POOL)
        return pool.repeat(repeats)[:count].reshape(shape)
