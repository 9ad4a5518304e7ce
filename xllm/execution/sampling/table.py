"""Per-row sampling facts as columns, and the draws of a step staged from them."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.request.sampling import SamplingParams
from xllm.core.utils.arrays import BoolArray, Float32Array, Int32Array, Int64Array
from xllm.execution.sampling.rng import row_keys
from xllm.execution.sampling.step import SamplingStep
from xllm.execution.transfer import to_device

_SEED_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Filters:
    """Arguments of ``ops.choose_tokens`` that stay as long as the batch does; None is off."""

    inverse_temperature: torch.Tensor  # (M,) float32, 0 is greedy
    log_min_p: torch.Tensor | None  # (M,) float32
    top_k: torch.Tensor | None  # (M,) int64
    top_p: torch.Tensor | None  # (M,) float32


@dataclasses.dataclass(frozen=True, slots=True)
class PlainDraws:
    """What Gumbel-max alone needs for a step's rows. Both None when all rows are greedy."""

    inverse_temperature: Float32Array | None  # (M,) 0 is greedy
    keys: Int32Array | None  # (2, M)


class SamplingTable:
    """Sampling parameters of every row as NumPy columns.

    The columns stay on the host, where the scheduler's row numbers are; what the device needs is
    gathered once per batch composition and kept until the batch or a parameter changes.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._temperature = np.zeros(max_rows, np.float32)
        self._top_k = np.zeros(max_rows, np.int64)  # vocab_size = off
        self._top_p = np.ones(max_rows, np.float32)
        self._min_p = np.zeros(max_rows, np.float32)
        self._seeds = np.zeros(max_rows, np.int64)
        self._draws = np.zeros(max_rows, np.bool_)
        self._plain = np.ones(max_rows, np.bool_)  # greedy or temperature alone, no logprobs
        self.logprobs = np.full(max_rows, -1, np.int32)  # alternatives; -1 = not asked
        self.prompt_logprobs = np.full(max_rows, -1, np.int32)
        self._version = 0
        self._staged: tuple[int, bytes, Filters | None] = (-1, b"", None)

    def set(self, row: int, params: SamplingParams, seed: int) -> None:
        """Store the parameters of ``row``. ``seed`` is reduced to 64 bits."""
        self._draws[row] = not params.greedy
        self._temperature[row] = params.temperature
        self._top_k[row] = min(params.top_k or self._vocab_size, self._vocab_size)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = np.uint64(seed & _SEED_MASK).astype(np.int64)
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.prompt_logprobs[row] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        filtered = self._top_k[row] < self._vocab_size or params.top_p < 1.0 or params.min_p > 0.0
        self._plain[row] = params.logprobs is None and (params.greedy or not filtered)
        self._version += 1

    def plain_draws(self, step: SamplingStep) -> PlainDraws | None:
        """The draws of a step whose rows need neither filters nor logprobs, else None."""
        rows = step.rows
        if not self._plain[rows].all():
            return None
        draws = self._draws[rows]
        if not draws.any():
            return PlainDraws(None, None)
        return PlainDraws(self._inverse_temperature(rows, draws), self.keys(step))

    def filters(self, rows: Int64Array) -> Filters | None:
        """How the rows draw, or None when all are greedy."""
        key = rows.tobytes()
        version, staged_key, staged = self._staged
        if version != self._version or staged_key != key:
            staged = self._gather(rows)
            self._staged = (self._version, key, staged)
        return staged

    def keys(self, step: SamplingStep) -> Int32Array:
        """(2, M) random keys of the step's rows."""
        return row_keys(self._seeds[step.rows], step.positions)

    def _gather(self, rows: Int64Array) -> Filters | None:
        draws = self._draws[rows]
        if not draws.any():
            return None
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        with np.errstate(divide="ignore"):
            log_min_p = np.log(min_p)
        return Filters(
            inverse_temperature=self._upload(self._inverse_temperature(rows, draws)),
            log_min_p=self._upload(log_min_p) if min_p.any() else None,
            top_k=self._upload(top_k) if (top_k < self._vocab_size).any() else None,
            top_p=self._upload(top_p) if (top_p < 1.0).any() else None,
        )

    def _inverse_temperature(self, rows: Int64Array, draws: BoolArray) -> Float32Array:
        inverse = np.zeros(len(rows), np.float32)
        np.divide(1.0, self._temperature[rows], out=inverse, where=draws)
        return inverse

    def _upload(self, values: np.ndarray) -> torch.Tensor:
        return to_device(values, self._device)
