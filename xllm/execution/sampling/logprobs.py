"""Logprobs of the raw model distribution: of sampled tokens and of prompt tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

# Prompt positions whose logits exist at once: 128 x 150k x 4 bytes = 77 MB.
PROMPT_CHUNK = 128


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs of L tokens. Column 0 is the token itself, the others the best, best first."""

    token_ids: torch.Tensor  # (L, K+1) int32
    logprobs: torch.Tensor  # (L, K+1) float32
    ranks: torch.Tensor  # (L,) int32, 1 = most likely


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> TokenLogprobs:
    """Logprobs of ``tokens`` and of the ``num_top`` best tokens.

    Args:
        logits: (L, V) float32, as the model made them.
        tokens: (L,) int64.
        num_top: alternatives per token, clipped to V.
    """
    logprobs = logits.log_softmax(dim=1)
    own = logprobs.gather(1, tokens.unsqueeze(1))
    ranks = (logprobs > own).sum(dim=1, dtype=torch.int32) + 1
    values, ids = logprobs.topk(min(num_top, logits.shape[1]), dim=1)
    return TokenLogprobs(
        torch.cat((tokens.unsqueeze(1), ids), dim=1).int(), torch.cat((own, values), dim=1), ranks
    )


def prompt_logprobs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    num_top: int,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[TokenLogprobs]:
    """Logprobs of prompt tokens, ``PROMPT_CHUNK`` positions at a time to bound memory.

    Args:
        hidden: (P, H) hidden states; row i predicts ``targets[i]``.
        targets: (P,) int64, the prompt tokens that follow.
        num_top: alternatives per token.
        compute_logits: (M, H) -> (M, V) float32.
    """
    for start in range(0, len(targets), PROMPT_CHUNK):
        part = slice(start, start + PROMPT_CHUNK)
        yield token_logprobs(compute_logits(hidden[part]), targets[part], num_top)
