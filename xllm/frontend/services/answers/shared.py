"""Small pieces that the generation services share."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from xllm.frontend.output.answer import AnswerState
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.protocol.chat import AssistantMessage, CalledFunction, MadeToolCall
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.sampling import CommonFields, StreamOptions
from xllm.frontend.protocol.usage import PromptTokensDetails, Usage
from xllm.frontend.services.answers.logprobs import shown
from xllm.frontend.text.tokenizer import Tokenizer

T = TypeVar("T")

# Text up to this long is rendered and tokenized in about a millisecond: no thread is worth it.
_INLINE_CHARS = 1024
# Text longer than this takes a tenth of a second and more, so it has two threads of its own: a few
# such requests would hold all the others, and every other intake would wait for them.
_LONG_CHARS = 1 << 17
_long_intake = ThreadPoolExecutor(2, "long-intake")


async def off_loop(num_chars: int, work: Callable[[], T]) -> T:
    """Run intake work here if it is short, in a thread if it could hold up the event loop.

    Raises:
        RequestError: 400; a value that a client made up freely is too deep to walk through.
    """
    try:
        if num_chars <= _INLINE_CHARS:
            return work()
        if num_chars <= _LONG_CHARS:
            return await asyncio.to_thread(work)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_long_intake, context.run, work)
    except RecursionError:
        raise RequestError(400, "the request is nested too deeply") from None


def check_stream_fields(body: CommonFields) -> None:
    """Refuse what a stream cannot carry, and stream options without a stream.

    Raises:
        RequestError: 400.
    """
    if body.stream_options is not None and not body.stream:
        raise RequestError.bad_field("stream_options", "needs stream to be true")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError.bad_field("prompt_logprobs", "is not available in a stream")


def usage_of(answers: Sequence[AnswerState]) -> Usage:
    """Token counts of the answers to one API request."""
    prompt = sum(answer.num_prompt_tokens for answer in answers)
    generated = sum(answer.num_generated_tokens for answer in answers)
    cached = sum(answer.num_cached_tokens for answer in answers)
    return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))


def assistant_message(delta: ChoiceDelta) -> AssistantMessage:
    """The message of a whole answer. Content is null where there is something else instead."""
    message = AssistantMessage(delta.text)
    if delta.reasoning:
        message.reasoning_content = message.reasoning = delta.reasoning
    if delta.tool_calls:
        message.tool_calls = [
            MadeToolCall(call.id or "", CalledFunction(call.name or "", call.arguments))
            for call in delta.tool_calls
        ]
    if not delta.text and (delta.reasoning or delta.tool_calls):
        message.content = None
    return message


class ChunkUsage:
    """Which usage the chunks of one stream carry.

    Args:
        options: the request's.
        usage: counts the tokens so far.
    """

    def __init__(self, options: StreamOptions | None, usage: Callable[[], Usage]) -> None:
        self._usage = usage
        self.asked = bool(options and options.include_usage)
        self._running = bool(self.asked and options and options.continuous_usage_stats)

    def of_chunk(self) -> Usage | UnsetType | None:
        """Absent unless asked for; then null, or the running count."""
        if not self.asked:
            return UNSET
        return self._usage() if self._running else None


def shown_prompt_logprobs(entries: Sequence[TokenEntry], tokenizer: Tokenizer) -> list[Any]:
    """vLLM's ``prompt_logprobs``: per prompt token a map of candidates, null for the first."""
    return shown(
        entries, lambda entry: None if entry.logprob is None else _candidates(entry, tokenizer)
    )


def _candidates(entry: TokenEntry, tokenizer: Tokenizer) -> dict[str, Any]:
    ranked = [(token_id, value, rank) for rank, (token_id, value) in _ranked(entry)]
    own = (entry.token_id, entry.logprob, entry.rank)
    return {
        str(token_id): {
            "logprob": value,
            "rank": rank,
            "decoded_token": tokenizer.printable(token_id),
        }
        for token_id, value, rank in [*ranked, own]
    }


def _ranked(entry: TokenEntry) -> enumerate[tuple[int, float]]:
    return enumerate(entry.alternatives, start=1)
