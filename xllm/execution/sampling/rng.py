"""Counter-based random numbers: a pure function of (seed, position, token id).

A row's draw depends on nothing else, so a seeded request gets the same tokens alone, in any batch,
at any row index and after a preemption, and there is no generator state to save. The integer part
is exact and therefore the same on every device. SplitMix64 (Steele, Lea, Flood 2014) spreads the
seed and the position into two 32-bit keys on the host; a 32-bit finalizer in the style of
MurmurHash3, keyed twice, spreads the token id on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm.core.utils.arrays import Int32Array, Int64Array

_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)
_MIX_64_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_64_B = np.uint64(0x94D049BB133111EB)
# As signed 32-bit numbers, because torch multiplies int32 with wrap-around.
_GOLDEN_32 = 0x9E3779B1 - (1 << 32)
_MIX_32_A = 0x21F0AAAD
_MIX_32_B = 0x735A2D97
# -v is clamped here: the largest float32 below 1, so that log1p(-v) stays finite.
_LARGEST_UNIFORM = 1.0 - 2.0**-24


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


def exponential(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Draws from the unit exponential distribution, one per row and token id.

    Args:
        keys: (2, M) int32 from ``row_keys``.
        token_ids: (V,) or (M, V) int32.

    Returns:
        (M, V) float32, within 2**-32 .. 17. Fine-grained near 0, where a race is decided.
    """
    hashed = token_ids.mul(_GOLDEN_32) + keys[0].unsqueeze(1)
    spare = torch.empty_like(hashed)
    _xor_shift_(hashed, 16, spare)
    hashed.mul_(_MIX_32_A).bitwise_xor_(keys[1].unsqueeze(1))
    _xor_shift_(hashed, 15, spare)
    hashed.mul_(_MIX_32_B)
    _xor_shift_(hashed, 15, spare)
    # v = (x + 1/2) / 2**31 in (0, 1) from the upper 31 bits x; the draw is -log(1 - v).
    hashed.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)
    draws = hashed.float().mul_(-(2.0**-31)).sub_(2.0**-32).clamp_(min=-_LARGEST_UNIFORM)
    return draws.log1p_().neg_()


def _mix_64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_64_A
    state = (state ^ (state >> np.uint64(27))) * _MIX_64_B
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def _xor_shift_(x: torch.Tensor, bits: int, spare: torch.Tensor) -> None:
    """x ^= x >>> bits, in place. torch shifts int32 arithmetically, hence the mask."""
    torch.bitwise_right_shift(x, bits, out=spare)
    x.bitwise_xor_(spare.bitwise_and_((1 << (32 - bits)) - 1))
