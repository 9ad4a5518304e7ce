"""What the frontend hands to the engine: token ids and resolved sampling, no text."""

from __future__ import annotations

import msgspec

from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput
from xllm.core.utils.arrays import Int32Array


class Targets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the client wishes of time, in milliseconds. Carried for schedulers that can use it."""

    ttft_slo_ms: float | None = None  # arrival to first token
    tpot_slo_ms: float | None = None  # between two tokens, on average
    deadline_ms: float | None = None  # arrival to last token; then the server ends the request


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference request, validated and tokenized. The engine trusts every field.

    ``handle`` is the number the client chose for it; token traffic names a sequence by
    ``(handle, choice)``, ``choice`` in ``range(params.n)``.
    """

    handle: int
    request_id: str
    prompt_token_ids: Int32Array  # shape (prompt_len,), at least one token
    params: SamplingParams
    max_tokens: int  # resolved: params.max_tokens clipped to the context; 0 scores the prompt only
    stop_token_ids: tuple[int, ...] = ()  # EOS ids (unless ignore_eos) and the user's
    suppress_token_ids: tuple[int, ...] = ()  # banned until min_tokens: every token that could end
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    seed: int = 0  # resolved: drawn on arrival when the user gave none
    priority: int = 0  # lower runs first
    arrival_time: float = 0.0  # time.monotonic() of the sending host
    cache_salt: str | None = None
    adapter: int = 0  # a loaded adapter's number; 0 is the plain model
    targets: Targets = Targets()
    structured_output: StructuredOutput | None = None  # the grammar of every choice
    second_start: int = 0  # first token of the second text of a pair; 0: the prompt is one text
    part_of: int = 0  # handle of the client's request that this one helps to answer; 0: it is that

    @property
    def deadline(self) -> float | None:
        """``time.monotonic()`` of the sending host when it ends whatever happens; None is never."""
        deadline_ms = self.targets.deadline_ms
        return None if deadline_ms is None else self.arrival_time + deadline_ms / 1000
