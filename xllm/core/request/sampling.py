"""How to choose the next token, as the user asks for it."""

from __future__ import annotations

import math

import msgspec

from xllm.core.request.structured import StructuredOutputsParams

# Greedy below this temperature: dividing logits by less would overflow float32.
MIN_TEMPERATURE = 1e-5
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1  # of every other integer: they live in int32 columns


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request. Names and meanings follow vLLM and the OpenAI API.

    ``top_k`` 0 or -1, ``top_p`` 1, ``min_p`` 0, penalties 0 (repetition 1) switch a rule off.
    ``max_tokens`` None means "up to the context length". ``logprobs=k`` returns the sampled
    token's logprob and the ``k`` best alternatives; logprobs are those of the raw model
    distribution, before penalties, grammar and temperature. ``seed`` makes the tokens
    reproducible in any batch; without one, a seed is drawn when the request arrives.

    Raises:
        ValueError: a value is out of range; the message starts with the field's name.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        stop: object = self.stop
        if isinstance(stop, str):
            set_field(self, "stop", (stop,))
        for name in ("stop", "stop_token_ids", "bad_words"):
            set_field(self, name, tuple(getattr(self, name) or ()))
        if self.allowed_token_ids is not None:
            set_field(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if self.logit_bias is not None:
            bias = {int(k): float(v) for k, v in self.logit_bias.items()}
            set_field(self, "logit_bias", bias or None)
        if self.top_k == -1:
            set_field(self, "top_k", 0)
        self._check()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < MIN_TEMPERATURE

    def _check(self) -> None:
        _at_least("n", self.n, 1)
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 0)
            if self.min_tokens > self.max_tokens:
                raise ValueError(
                    f"min_tokens must not exceed max_tokens ({self.max_tokens}), "
                    f"got {self.min_tokens}"
                )
        _at_least("min_tokens", self.min_tokens, 0)
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p must be greater than 0, got 0")
        _at_least("top_k", self.top_k, 0, also=" (0 or -1 switches it off)", high=MAX_SEED)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # Logits are divided by it: a smaller one would overflow them.
        _between("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise ValueError("seed must fit in 64 bits")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 0)
        if any(not s for s in self.stop):
            raise ValueError("stop must not contain an empty string")
        if any(not w for w in self.bad_words):
            raise ValueError("bad_words must not contain an empty string")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must not be empty")
        for token, bias in (self.logit_bias or {}).items():
            if not -100.0 <= bias <= 100.0:
                raise ValueError(
                    f"logit_bias must be between -100 and 100, got {bias} for token {token}"
                )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} must be between {low:g} and {high:g}, got {value}")


def _at_least(name: str, value: int, low: int, also: str = "", high: int = MAX_COUNT) -> None:
    if value < low:
        raise ValueError(f"{name} must be at least {low}{also}, got {value}")
    if value > high:
        raise ValueError(f"{name} must be at most {high}")
