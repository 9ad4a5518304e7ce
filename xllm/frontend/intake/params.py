"""API fields to ``SamplingParams``."""

from __future__ import annotations

import re
from typing import Any

from xllm.core.request.request import Targets
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.defaults import SamplingDefaults
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.sampling import CommonFields

# Taken over under the same name; null means "not given".
_PLAIN = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)
_LISTS = ("stop_token_ids", "bad_words", "allowed_token_ids")
_TOKEN_ID = re.compile(r"-?[0-9]{1,10}")
COMPLETION_MAX_TOKENS = 16  # the API's default
_MAX_TARGET_MS = 24 * 3600 * 1000.0


def chat_params(body: ChatCompletionRequest, defaults: SamplingDefaults) -> SamplingParams:
    """Sampling parameters of a chat request. Without ``max_tokens`` the context is the limit.

    Raises:
        ValueError: a field is out of range; the message starts with its name.
    """
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        raise ValueError(f"{name} must be at least 1, got {max_tokens}")
    logprobs = None
    if body.top_logprobs is not None and body.top_logprobs < 0:
        raise ValueError(f"top_logprobs must be at least 0, got {body.top_logprobs}")
    if body.logprobs:
        logprobs = body.top_logprobs or 0
    elif body.top_logprobs:
        raise ValueError("top_logprobs needs logprobs to be true")
    return _params(body, defaults, max_tokens=max_tokens, logprobs=logprobs)


def completion_params(body: CompletionRequest, defaults: SamplingDefaults) -> SamplingParams:
    """Sampling parameters of a completion request.

    ``best_of`` answers are generated where that is more than ``n``; with ``echo``, ``logprobs``
    covers the prompt too.

    Raises:
        ValueError: a field is out of range; the message starts with its name.
    """
    n = body.n if body.n is not None else 1
    best_of = body.best_of if body.best_of is not None else n
    if best_of < n:
        raise ValueError(f"best_of must be at least n ({n}), got {best_of}")
    if best_of > n and body.stream:
        raise ValueError("best_of cannot exceed n in a stream")
    logprobs = body.logprobs
    over: dict[str, Any] = {"max_tokens": COMPLETION_MAX_TOKENS}
    if body.max_tokens is not None:
        over["max_tokens"] = body.max_tokens
    if best_of > n:
        over["n"] = best_of
        logprobs = logprobs or 0  # answers are ranked by their mean logprob
    if body.echo and body.logprobs is not None:
        over["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return _params(body, defaults, logprobs=logprobs, **over)


def targets_of(body: CommonFields) -> Targets:
    """The times that a request asks for. ``timeout`` is ``deadline_ms`` in seconds.

    Raises:
        ValueError: a time is not positive or longer than a day, or the deadline is given twice.
    """
    deadline_ms = body.deadline_ms
    if body.timeout is not None:
        if deadline_ms is not None:
            raise ValueError("timeout and deadline_ms exclude each other")
        _check_target("timeout", body.timeout, _MAX_TARGET_MS / 1000)
        deadline_ms = body.timeout * 1000
    _check_target("deadline_ms", deadline_ms, _MAX_TARGET_MS)
    _check_target("ttft_slo_ms", body.ttft_slo_ms, _MAX_TARGET_MS)
    _check_target("tpot_slo_ms", body.tpot_slo_ms, _MAX_TARGET_MS)
    return Targets(
        ttft_slo_ms=body.ttft_slo_ms, tpot_slo_ms=body.tpot_slo_ms, deadline_ms=deadline_ms
    )


def _check_target(name: str, value: float | None, high: float) -> None:
    if value is not None and not 0 < value <= high:
        raise ValueError(f"{name} must be above 0 and at most {high:.0f}, got {value}")


def _params(body: CommonFields, defaults: SamplingDefaults, **over: Any) -> SamplingParams:
    values: dict[str, Any] = dict(defaults.values)
    for name in _PLAIN:
        if (value := getattr(body, name)) is not None:
            values[name] = value
    for name in _LISTS:
        if (value := getattr(body, name)) is not None:
            values[name] = tuple(value)
    if body.stop is not None:
        values["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias is not None:
        values["logit_bias"] = {_token_id(k): v for k, v in body.logit_bias.items()}
    return SamplingParams(**{**values, **over})


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise ValueError(f"logit_bias must have token ids as keys, got {key[:32]!r}")
    return int(key)
