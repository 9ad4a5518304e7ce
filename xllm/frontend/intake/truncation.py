"""``truncate_prompt_tokens``: of a prompt that is longer, its end is kept."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.frontend.intake.limits import Limits
from xllm.frontend.text.tokenizer import Tokenizer

# A text, None if tokens of it were dropped; and the token ids that are left.
KeptText = tuple[str | None, list[int]]


def num_kept(asked: int | None, max_tokens: int | None, limits: Limits) -> int | None:
    """Tokens of a prompt to keep at most; None drops nothing.

    Args:
        asked: the API's field; -1 keeps what ``max_tokens`` leaves of the context.
        max_tokens: of the answer; None for as many as fit, of which one is sure.
        limits: has the context length.

    Raises:
        ValueError: out of range, or the answer may take all of the context.
    """
    context = limits.max_model_len
    if asked == -1:
        kept = context - (1 if max_tokens is None else max_tokens)
        if kept < 1:
            raise ValueError(
                f"truncate_prompt_tokens -1 needs max_tokens below the context length of "
                f"{context} tokens, got {max_tokens}"
            )
        return kept
    most = context - (max_tokens != 0)
    if asked is not None and not 1 <= asked <= most:
        raise ValueError(f"truncate_prompt_tokens must be -1 or between 1 and {most}, got {asked}")
    return asked


def last_tokens(
    tokenizer: Tokenizer,
    limits: Limits,
    texts: Sequence[str],
    num_tokens: int,
    *,
    add_special_tokens: bool,
) -> list[KeptText]:
    """The last tokens of each text, with the special ones around them, which count.

    Of a text that is longer than any context only the end is looked at.
    """
    max_chars = limits.max_chars(tokenizer.max_token_chars)
    room = max(0, num_tokens - tokenizer.frame_size) if add_special_tokens else num_tokens
    ends = tokenizer.encode_batch([t[-max_chars:] for t in texts], add_special_tokens=False)
    found: list[KeptText] = []
    for text, ids in zip(texts, ends, strict=True):
        dropped = len(ids) - room
        kept = ids[max(0, dropped) :]
        found.append((None if dropped > 0 else text, tokenizer.framed(kept, add_special_tokens)))
    return found
