"""How much work the intake of a request will be, in characters, without doing any of it."""

from __future__ import annotations

from collections.abc import Sequence

from xllm.frontend.intake.messages import num_chars
from xllm.frontend.intake.structured import asks_for_grammar
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.tokenize import TokenizeRequest

# Rendering one message, however short, takes about as long as tokenizing this many characters.
_MESSAGE_CHARS = 64
# Values of any size and depth that only a walk through them could measure.
_UNKNOWN_CHARS = 1 << 16


def input_chars(entries: str | Sequence[str | int | Sequence[int]]) -> int:
    """Characters and token ids of texts, lists of ids, or one such."""
    if isinstance(entries, str) or not entries or isinstance(entries[0], int):
        return len(entries)  # of however many ids, without a look at each
    return sum(1 if isinstance(entry, int) else len(entry) for entry in entries)


def intake_chars(body: ChatCompletionRequest | CompletionRequest | TokenizeRequest) -> int:
    """Characters to render and tokenize, token ids counted as one each."""
    total = 0
    if isinstance(body, ChatCompletionRequest | CompletionRequest):
        total += sum(map(len, body.bad_words or ())) + len(body.allowed_token_ids or ())
        if asks_for_grammar(body):
            total += _UNKNOWN_CHARS
    if isinstance(body, CompletionRequest):
        return total + input_chars(body.prompt)
    if isinstance(body, TokenizeRequest):
        total += len(body.prompt or "") + len(body.content or "")
    messages = body.messages or []
    total += num_chars(messages) + _MESSAGE_CHARS * len(messages)
    if body.tools or body.chat_template_kwargs or any(m.tool_calls for m in messages):
        total += _UNKNOWN_CHARS
    return total
