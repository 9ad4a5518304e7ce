"""Logprob columns of the engine to one entry per token."""

from __future__ import annotations

from typing import NamedTuple

from xllm.core.messages.server import LogprobColumns, PromptLogprobs


class TokenEntry(NamedTuple):
    """A token with its logprob. ``alternatives`` are (token id, logprob), best first."""

    token_id: int
    logprob: float | None  # None: the first token of a prompt, and answers without logprobs
    rank: int  # 1 = most likely
    alternatives: list[tuple[int, float]]


def entries_by_position(columns: LogprobColumns) -> dict[int, TokenEntry]:
    """Entries of one step, by their index into the batch's flat ``token_ids``."""
    rows = zip(
        columns.entries.tolist(),
        columns.counts.tolist(),
        columns.token_ids.tolist(),
        columns.logprobs.tolist(),
        columns.ranks.tolist(),
        strict=True,
    )
    return {
        position: _entry(ids, values, rank, count) for position, count, ids, values, rank in rows
    }


def prompt_entries(part: PromptLogprobs, count: int) -> list[TokenEntry]:
    """Entries of a stretch of a prompt, with ``count`` alternatives each."""
    rows = zip(part.token_ids.tolist(), part.logprobs.tolist(), part.ranks.tolist(), strict=True)
    return [_entry(ids, values, rank, count) for ids, values, rank in rows]


def _entry(ids: list[int], values: list[float], rank: int, count: int) -> TokenEntry:
    # Column 0 is the token itself, then come its alternatives and padding.
    alternatives = list(zip(ids[1 : count + 1], values[1 : count + 1], strict=True))
    return TokenEntry(ids[0], values[0], rank, alternatives)
