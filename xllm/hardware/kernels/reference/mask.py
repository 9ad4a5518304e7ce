"""Banning tokens by bit masks, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 32


def mask_logits(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """See ``ops.mask_logits``."""
    bits = torch.arange(_BITS, dtype=torch.int32, device=masks.device)
    allowed = (masks.unsqueeze(-1) >> bits) & 1
    banned = allowed.flatten(1)[:, : logits.shape[1]] == 0
    logits[rows] = logits[rows].masked_fill(banned, -torch.inf)
