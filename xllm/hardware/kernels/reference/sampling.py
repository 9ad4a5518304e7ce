"""Greedy and Gumbel-max sampling with token feedback, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    keys: Tensor,
    tokens: Tensor,
    best_logits: Tensor,
    token_table: Tensor,
    write_index: Tensor,
) -> None:
    """See ``ops.sample_tokens``."""
    logits = logits.float()
    token_ids = torch.arange(logits.shape[1], dtype=torch.int64, device=logits.device)
    scores = logits * inverse_temperature[:, None] - _log_exponential(keys, token_ids)
    scores = torch.where(inverse_temperature[:, None] > 0, scores, logits)
    tokens.copy_(scores.argmax(dim=1))
    best_logits.copy_(logits.amax(dim=1))
    wanted = write_index >= 0
    token_table.view(-1)[write_index[wanted]] = tokens[wanted]


def _log_exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """log of unit exponential draws (M, V); 32-bit hashing carried out in int64."""
    low = 0xFFFFFFFF
    x = (token_ids * 0x9E3779B1 + keys[0].long()[:, None]) & low
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & low
    x ^= keys[1].long()[:, None] & low
    x = ((x ^ (x >> 15)) * 0x735A2D97) & low
    x = (x ^ (x >> 15)) >> 1
    v = (x.double() + 0.5) / 2**31
    return torch.log(-torch.log1p(-v)).float()
