"""What runs next: budgets and policies."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Step budgets, batch assembly and queue order."""

    max_num_seqs: int = option(256, "Most sequences that run at once.", low=1, high=65536)
    max_num_batched_tokens: int = option(
        0,
        "Most tokens that one step computes; 0 takes what suits the device, 8192 on a GPU and "
        "2048 on a CPU.",
        low=0,
        high=1 << 20,
    )
    scheduling: str = option(
        "decode_first",
        "Batch assembly: decode_first never lets a prefill stall running streams, prefill_first "
        "starts new requests sooner.",
    )
    priority_policy: str = option(
        "fcfs",
        "Order of the queue: fcfs by arrival, priority by the request's priority field.",
        aliases=("--scheduling-policy",),
    )
    enable_chunked_prefill: bool = option(
        True, "Split prompts over several steps when they exceed the token budget."
    )
    async_scheduling: bool | None = option(
        None,
        "Schedule the next step before the last one's tokens are read; by default on for devices "
        "that compute asynchronously.",
    )
    max_waiting: int = option(
        4096, "Most requests that wait; further ones are answered 429.", low=1
    )

    def __post_init__(self) -> None:
        check_bounds(self)
