"""Counter-based random numbers: a pure function of (seed, position, token id).

A row's draw depends on nothing else, so a seeded request gets the same tokens alone, in any batch,
at any row index and after a preemption, and there is no generator state to save. The integer part
is exact and therefore the same on every device. SplitMix64 (Steele, Lea, Flood 2014) spreads the
seed and the position into two 32-bit keys on the host; a 32-bit finalizer in the style of
MurmurHash3, keyed twice, spreads the token id on the device (``exponential``, which the kernels of
every platform repeat).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm.core.utils.arrays import Int32Array, Int64Array
from xllm.hardware.kernels.reference.choose import exponential

__all__ = ["exponential", "row_keys"]

_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)
_MIX_64_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_64_B = np.uint64(0x94D049BB133111EB)


def row_keys(seeds: Int64Array, positions: Int64Array) -> Int32Array:
    """Two 32-bit keys per row.

    Args:
        seeds: (M,) any 64-bit values.
        positions: (M,) index of the token to be drawn within its row.

    Returns:
        (2, M) keys.
    """
    with np.errstate(over="ignore"):
        state = _mix_64(seeds.astype(np.int64).view(np.uint64) + _GOLDEN_64)
        state = _mix_64(state + positions.astype(np.uint64) * _GOLDEN_64)
    return np.ascontiguousarray(state.view(np.int32).reshape(-1, 2).T)


def _mix_64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_64_A
    state = (state ^ (state >> np.uint64(27))) * _MIX_64_B
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed
