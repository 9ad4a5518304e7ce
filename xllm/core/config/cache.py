"""The KV cache: size and sharing."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """KV cache size, block size and prefix caching."""

    block_size: int | None = option(
        None, "Tokens per KV block; by default what the attention backend prefers.", low=1, high=512
    )
    max_memory_utilization: float = option(
        0.9,
        "Share of the device's memory that weights and KV cache may take together.",
        low=0.01,
        high=1.0,
        aliases=("--gpu-memory-utilization",),
    )
    max_cache_size: int = option(
        0,
        "Ceiling of the KV cache in bytes; 0 leaves it to --max-memory-utilization, except on a "
        "CPU, where it then takes at most 4 GiB.",
        low=0,
    )
    num_kv_tokens: int | None = option(
        None, "Size of the KV cache in tokens, overriding both memory limits (for tests).", low=1
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of cached keys and values: auto is the model's; fp8 (e4m3) halves the cache and what "
        "decoding reads, and needs a GPU of compute capability 8.9.",
        choices=("auto", "fp8", "fp8_e4m3"),
    )
    enable_prefix_caching: bool = option(
        True, "Reuse the KV blocks of equal prompt prefixes across requests."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
