"""Fields that chat and completion requests share, under their OpenAI and vLLM names."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StreamOptions(msgspec.Struct):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(msgspec.Struct):
    """Asked form of the answer; ``frontend.intake.structured`` reads it."""

    type: str
    json_schema: Any = None
    schema: Any = None
    structures: Any = None
    triggers: Any = None


class CommonFields(msgspec.Struct, kw_only=True):
    """Sampling and bookkeeping fields of both generation endpoints. Null means the default.

    Without a value a sampling field takes the model's generation config, else the API's default.
    ``deadline_ms`` (or ``timeout``, in seconds) ends the request with a 504 that long after its
    arrival. ``ttft_slo_ms`` and ``tpot_slo_ms`` are wishes that travel with the request.
    Of a prompt with more than ``truncate_prompt_tokens`` tokens the last ones are kept; -1 leaves
    room for ``max_tokens`` in the context.
    ``user``, ``metadata``, ``store`` and ``service_tier`` are accepted and change nothing. What
    ``frontend.intake.unserved`` names is there to be refused.
    """

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left"] | None = None
    priority: int | None = None
    timeout: float | None = None
    deadline_ms: float | None = None
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    logits_processors: Any = None
    return_tokens_as_token_ids: bool | None = None
