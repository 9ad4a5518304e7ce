"""Token entries to the two logprob shapes of the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.protocol.chat import ChatLogprobs, TokenLogprob, TopLogprob
from xllm.frontend.protocol.completions import CompletionLogprobs
from xllm.frontend.text.detokenizer import Detokenizer
from xllm.frontend.text.tokenizer import Tokenizer

T = TypeVar("T")

# Encoding an entry with its alternatives takes microseconds, all of an answer in one call that lets
# nothing else run. Of more entries than this each is encoded as it is made, in the thread that
# makes them; that also keeps a twentieth of the memory.
_MANY = 32
_encode = msgspec.json.Encoder().encode


def shown(
    entries: Sequence[TokenEntry], show: Callable[[TokenEntry], T]
) -> list[T] | list[msgspec.Raw]:
    """What ``show`` makes of each entry, as JSON text where they are many."""
    if len(entries) <= _MANY:
        return [show(entry) for entry in entries]
    return [msgspec.Raw(_encode(show(entry))) for entry in entries]


def chat_logprobs(entries: Sequence[TokenEntry], tokenizer: Tokenizer) -> ChatLogprobs:
    """Chat shape. ``bytes`` joined over all tokens are the answer's bytes."""

    def show(entry: TokenEntry) -> TokenLogprob:
        return TokenLogprob(
            tokenizer.printable(entry.token_id),
            entry.logprob if entry.logprob is not None else 0.0,
            list(tokenizer.bytes_of(entry.token_id)),
            [
                TopLogprob(tokenizer.printable(token_id), value, list(tokenizer.bytes_of(token_id)))
                for token_id, value in entry.alternatives
            ],
        )

    return ChatLogprobs(shown(entries, show))


def completion_logprobs(
    entries: Sequence[TokenEntry], offsets: Sequence[int], tokenizer: Tokenizer, shift: int = 0
) -> CompletionLogprobs:
    """Completion shape: parallel lists; the taken token is always among the alternatives.

    Args:
        entries: one per token.
        offsets: first character of each token in its text.
        tokenizer: the model's.
        shift: characters before that text (an echoed prompt).
    """
    return CompletionLogprobs(
        tokens=[tokenizer.printable(entry.token_id) for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=shown(entries, lambda entry: _alternatives(entry, tokenizer)),
        text_offset=[offset + shift for offset in offsets],
    )


def prompt_offsets(entries: Sequence[TokenEntry], tokenizer: Tokenizer) -> list[int]:
    """First character of each prompt token in the prompt's text."""
    detokenizer = Detokenizer(tokenizer, at_start=True)
    offsets = []
    length = 0
    for entry in entries:
        offsets.append(length)
        length += len(detokenizer.push((entry.token_id,)))
    return offsets


def _alternatives(entry: TokenEntry, tokenizer: Tokenizer) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    found = {tokenizer.printable(token_id): value for token_id, value in entry.alternatives}
    found.setdefault(tokenizer.printable(entry.token_id), entry.logprob)
    return found
