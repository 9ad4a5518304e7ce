"""From the hidden states of whole prompts to one vector each.

Shapes: T tokens of the step, R rows whose prompt ends with it, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pool(method: str, hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """One vector per row, (R, H) float32.

    Args:
        method: ``cls`` (first token), ``last`` or ``mean``.
        hidden: (T, H).
        starts, ends: (R,) int64; row i is ``hidden[starts[i]:ends[i]]``, at least one token. For
            ``last`` the tokens before the last may have been computed by an earlier step.
    """
    if method == "cls":
        return hidden[starts].float()
    if method == "last":
        return hidden[ends - 1].float()
    assert method == "mean", method
    # Sums row by row: a running sum over the batch would let rows round each other.
    tokens = torch.arange(hidden.shape[0], device=hidden.device)
    row = torch.searchsorted(ends, tokens, right=True)
    inside = (tokens >= starts[row.clamp(max=len(ends) - 1)]) & (row < len(ends))
    target = torch.where(inside, row, len(ends))
    sums = hidden.new_zeros((len(ends) + 1, hidden.shape[1]), dtype=torch.float32)
    sums.index_add_(0, target, hidden.float())
    return sums[:-1] / (ends - starts)[:, None]
