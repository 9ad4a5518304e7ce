"""What sampling is told: a row when it starts, and the sampling rows of one step."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.messages.worker import RowSampling
from xllm.core.utils.arrays import Int32Array, Int64Array
from xllm.execution.transfer import to_device


@dataclasses.dataclass(frozen=True, slots=True)
class RowRequest:
    """A row that starts or resumes. ``token_ids`` are all tokens known so far, prompt first."""

    row: int
    sampling: RowSampling
    token_ids: Int32Array  # (num_tokens,)
    prompt_len: int


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingStep:
    """The rows of one step that sample, M of them, in the order of their logits.

    ``positions[i]`` is where row ``rows[i]`` puts the token it samples now; ``output_lens[i]`` of
    its tokens before that position were generated. ``token_table`` holds every row's tokens on the
    device; entries up to ``positions`` are valid there even when the host has not seen them.
    """

    rows: Int64Array  # (M,)
    positions: Int64Array  # (M,)
    output_lens: Int64Array  # (M,)
    token_table: torch.Tensor  # (max_rows, width) int32

    @classmethod
    def of(
        cls,
        rows: Int64Array,
        positions: Int64Array,
        prompt_lens: Int64Array,
        token_table: torch.Tensor,
    ) -> SamplingStep:
        """Build from the per-row prompt lengths ``prompt_lens`` (max_rows,)."""
        return cls(rows, positions, positions - prompt_lens[rows], token_table)

    def __len__(self) -> int:
        return len(self.rows)


def as_index(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """``array`` as an int64 tensor on ``device``, for indexing."""
    return to_device(np.asarray(array, np.int64), device)
