"""What one request may ask for. Checked before anything is allocated or computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from xllm.core.config.server import ServerConfig
from xllm.core.request.sampling import SamplingParams

# Normalization may join a few characters into one; no vocabulary known joins more than this.
_MAX_JOINED_CHARS = 4
_INT32_MAX = 2**31 - 1
_MAX_WORD_CHARS = 4096  # of one stop string or bad word
# Logprobs that one request may have the server hold at once: each takes some 120 bytes here, and
# half of that again in the answer's JSON. A thousand prompts of 8,000 tokens may be scored.
_MAX_LOGPROB_VALUES = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Server maxima and the model's sizes."""

    max_model_len: int  # tokens of prompt plus answer
    vocab_size: int  # ids the model knows
    max_n: int
    max_prompts: int
    max_logprobs: int
    max_beam_width: int
    max_stop: int
    max_logit_bias: int
    max_bad_words: int

    @classmethod
    def from_config(cls, server: ServerConfig, max_model_len: int, vocab_size: int) -> Limits:
        """Limits of a server config and a loaded model (both in ``EngineReady``)."""
        return cls(
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            max_n=server.max_n,
            max_prompts=server.max_prompts,
            max_logprobs=server.max_logprobs,
            max_beam_width=server.max_beam_width,
            max_stop=server.max_stop,
            max_logit_bias=server.max_logit_bias,
            max_bad_words=server.max_bad_words,
        )

    def check_params(self, params: SamplingParams) -> None:
        """Check sampling parameters against the server's maxima and the vocabulary.

        Raises:
            ValueError: the message starts with the field's name and says the limit.
        """
        _at_most("n", params.n, self.max_n)
        for name in ("logprobs", "prompt_logprobs"):
            _at_most(name, getattr(params, name) or 0, self.max_logprobs)
        _at_most_entries("stop", params.stop, self.max_stop)
        _at_most_entries("stop_token_ids", params.stop_token_ids, self.max_stop)
        _at_most_entries("bad_words", params.bad_words, self.max_bad_words)
        _at_most_entries("logit_bias", params.logit_bias or (), self.max_logit_bias)
        _at_most_entries("allowed_token_ids", params.allowed_token_ids or (), self.vocab_size)
        for name in ("stop", "bad_words"):
            longest = max(map(len, getattr(params, name)), default=0)
            if longest > _MAX_WORD_CHARS:
                raise ValueError(
                    f"{name} must have entries of at most {_MAX_WORD_CHARS} characters, "
                    f"got {longest}"
                )
        self.check_ids("stop_token_ids", params.stop_token_ids)
        self.check_ids("logit_bias", params.logit_bias or ())
        self.check_ids("allowed_token_ids", params.allowed_token_ids or ())

    def check_ids(self, field: str, ids: Collection[int]) -> None:
        """Check that every id is in the vocabulary.

        Raises:
            ValueError: one is not.
        """
        for bad in (min(ids), max(ids)) if ids else ():
            if not 0 <= bad < self.vocab_size:
                raise ValueError(
                    f"{field} must hold token ids between 0 and {self.vocab_size - 1}, got {bad}"
                )

    def check_prompt(self, field: str, ids: Sequence[int], max_tokens: int | None) -> None:
        """Check a prompt's length and ids. A prompt that is only scored may fill the context.

        Raises:
            ValueError: it is empty, too long for the context, or has ids outside the vocabulary.
        """
        if not ids:
            raise ValueError(f"{field} must contain at least one token")
        reserved = 0 if max_tokens == 0 else 1
        if len(ids) + reserved > self.max_model_len:
            remain = " (at least 1 must remain for the answer)" if reserved else ""
            raise ValueError(
                f"{field} has {len(ids)} tokens, which exceeds the context length of "
                f"{self.max_model_len} tokens{remain}"
            )
        self.check_ids(field, ids)

    def max_chars(self, max_token_chars: int) -> int:
        """Characters that can never fit, given how many one token may stand for."""
        return self.max_model_len * max_token_chars * _MAX_JOINED_CHARS

    def check_entries(self, field: str, count: int) -> None:
        """Check how many inputs one pooling request brings.

        Raises:
            ValueError: none, or too many.
        """
        if not 1 <= count <= self.max_prompts:
            raise ValueError(
                f"{field} must have between 1 and {self.max_prompts} entries, got {count}"
            )

    def check_sequences(self, num_prompts: int, n: int) -> None:
        """Check how many sequences one request starts.

        Raises:
            ValueError: too many prompts, or too many choices for that many prompts.
        """
        if num_prompts > self.max_prompts:
            raise ValueError(
                f"prompt must have at most {self.max_prompts} entries, got {num_prompts}"
            )
        most = max(self.max_prompts, self.max_n)
        if num_prompts * n > most:
            raise ValueError(
                f"n times the number of prompts must be at most {most}, got {num_prompts * n}"
            )

    def check_turns(self, num_messages: int) -> None:
        """Refuse more messages than the context has tokens, before any is rendered.

        Raises:
            ValueError: there are more.
        """
        if num_messages > self.max_model_len:
            raise ValueError(
                f"messages has {num_messages} entries, which cannot fit the context length of "
                f"{self.max_model_len} tokens"
            )

    def check_text(self, field: str, num_chars: int, max_token_chars: int) -> None:
        """Refuse a text that cannot fit the context, before the cost of tokenizing it.

        Raises:
            ValueError: it is too long, whatever its tokens are.
        """
        if num_chars > self.max_chars(max_token_chars):
            raise ValueError(
                f"{field} has {num_chars} characters, which cannot fit the context length of "
                f"{self.max_model_len} tokens"
            )

    def check_top_logprobs(self, value: int | None) -> None:
        """Check the chat API's name for ``logprobs``.

        Raises:
            ValueError: it is above the server's maximum.
        """
        _at_most("top_logprobs", value or 0, self.max_logprobs)

    def check_logprobs(
        self, params: SamplingParams, prompt_lens: Sequence[int], streams: bool
    ) -> None:
        """Check how many logprobs a request may bring, those of the alternatives included.

        Args:
            params: of every answer.
            prompt_lens: tokens of each prompt.
            streams: none of an answer's are kept.

        Raises:
            ValueError: more than are held for one request.
        """
        total = 0
        for length in prompt_lens:
            if params.prompt_logprobs is not None:
                total += length * (1 + params.prompt_logprobs)
            # Without a limit of its own an answer ends long before the context does.
            if params.logprobs is not None and params.max_tokens is not None and not streams:
                most = min(params.max_tokens, max(0, self.max_model_len - length))
                total += params.n * most * (1 + params.logprobs)
        if total > _MAX_LOGPROB_VALUES:
            raise ValueError(
                f"logprobs of all tokens and alternatives must be at most {_MAX_LOGPROB_VALUES} "
                f"in one request, got {total}: ask for fewer alternatives, tokens or prompts"
            )

    def check_best_of(self, value: int | None) -> None:
        """Check how many answers are made to choose from.

        Raises:
            ValueError: it is above the server's maximum of ``n``.
        """
        _at_most("best_of", value or 0, self.max_n)

    def check_priority(self, priority: int) -> None:
        """Check that a priority fits its column.

        Raises:
            ValueError: it does not.
        """
        if not -_INT32_MAX <= priority <= _INT32_MAX:
            raise ValueError(f"priority must be between {-_INT32_MAX} and {_INT32_MAX}")


def _at_most(name: str, value: int, high: int) -> None:
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")


def _at_most_entries(name: str, values: Collection[object], high: int) -> None:
    if len(values) > high:
        raise ValueError(f"{name} must have at most {high} entries, got {len(values)}")
