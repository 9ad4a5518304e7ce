"""How a batch tells an attention kernel which of its decode rows share leading blocks."""

from __future__ import annotations

import dataclasses

from torch import Tensor

LINE_ROWS = 32
PREFIX_UNIT = 128


@dataclasses.dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows of a batch of S that share leading blocks.

    ``lens[i]`` tokens of row ``i`` are read together with those of others: a multiple of
    ``PREFIX_UNIT`` below the row's length, or 0. ``members`` lists these rows, ``LINE_ROWS`` to a
    line: those of a line have the same prefix and come first in it, the rest is -1.
    """

    lens: Tensor  # (S,) int32
    members: Tensor  # (L, LINE_ROWS) int32
