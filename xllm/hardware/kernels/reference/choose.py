"""Choosing one token per row, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

# As signed 32-bit numbers, because torch multiplies int32 with wrap-around.
_GOLDEN = 0x9E3779B1 - (1 << 32)
_MIX_A = 0x21F0AAAD
_MIX_B = 0x735A2D97
# v is clamped here: the largest float32 below 1, so that log1p(-v) stays finite.
_LARGEST_UNIFORM = 1.0 - 2.0**-24


def choose_tokens(
    logits: Tensor,
    inverse_temperature: Tensor | None = None,
    log_min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See ``ops.choose_tokens``. Sorts whole rows, and never waits for a device."""
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    best = logits.gather(1, tokens.unsqueeze(1))
    if inverse_temperature is None:
        return tokens, best.squeeze(1)
    assert keys is not None
    inverse = inverse_temperature.unsqueeze(1)
    # The largest logit becomes 0: no overflow at any temperature, no precision lost near it.
    scaled = (logits - best).mul_(inverse)
    if log_min_p is not None:
        scaled.masked_fill_(scaled < log_min_p.unsqueeze(1), -torch.inf)
    single = inverse <= 0
    if top_k is not None or top_p is not None:
        threshold, kept = _cut(scaled, top_k, top_p)
        scaled.masked_fill_(scaled < threshold, -torch.inf)
        single |= kept == 1
    token_ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    # argmax(p / E) is Gumbel-max, argmax(log p - log E), for one logarithm less.
    winners = scaled.exp_().div_(exponential(keys, token_ids)).argmax(dim=1)
    return torch.where(single.squeeze(1), tokens, winners), best.squeeze(1)


def _cut(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> tuple[Tensor, Tensor]:
    """The smallest logit (M, 1) that is kept, and how many are kept (M, 1)."""
    values = scaled.sort(dim=1, descending=True).values
    keep = torch.ones_like(values, dtype=torch.bool)
    if top_k is not None:
        keep &= torch.arange(values.shape[1], device=values.device) < top_k.unsqueeze(1)
    if top_p is not None:
        mass = values.exp().mul_(keep).double()
        limit = top_p.double().unsqueeze(1) * mass.sum(dim=1, keepdim=True)
        limit.masked_fill_(top_p.unsqueeze(1) >= 1.0, torch.inf)
        keep &= (mass.cumsum(dim=1) - mass) < limit
    kept = keep.sum(dim=1, keepdim=True).clamp_(min=1)
    return values.gather(1, kept - 1), kept


def exponential(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Draws from the unit exponential distribution, a pure function of keys and token ids.

    Args:
        keys: (2, M) int32.
        token_ids: (V,) or (M, V) int32.

    Returns:
        (M, V) float32, within 2**-32 .. 17. Fine-grained near 0, where a race is decided.
    """
    hashed = token_ids.mul(_GOLDEN) + keys[0].unsqueeze(1)
    spare = torch.empty_like(hashed)
    _xor_shift_(hashed, 16, spare)
    hashed.mul_(_MIX_A).bitwise_xor_(keys[1].unsqueeze(1))
    _xor_shift_(hashed, 15, spare)
    hashed.mul_(_MIX_B)
    _xor_shift_(hashed, 15, spare)
    # v = (x + 1/2) / 2**31 in (0, 1) from the upper 31 bits x; the draw is -log(1 - v).
    hashed.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)
    draws = hashed.float().mul_(-(2.0**-31)).sub_(2.0**-32).clamp_(min=-_LARGEST_UNIFORM)
    return draws.log1p_().neg_()


def _xor_shift_(x: Tensor, bits: int, spare: Tensor) -> None:
    """x ^= x >>> bits, in place. torch shifts int32 arithmetically, hence the mask."""
    torch.bitwise_right_shift(x, bits, out=spare)
    x.bitwise_xor_(spare.bitwise_and_((1 << (32 - bits)) - 1))
