"""Where and how the model runs."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionConfig:
    """Device, threads and backends."""

    device: str = option("auto", "Device to run on.", choices=("auto", "cpu", "cuda"))
    num_threads: int = option(
        0, "Threads for CPU kernels; 0 takes the processors this process may use.", low=0, high=1024
    )
    attention_backend: str = option(
        "auto", "Attention backend by name; auto takes the best that the device offers."
    )
    tensor_parallel_size: int = option(
        1, "Devices that share the model; one so far.", low=1, high=1, aliases=("-tp",)
    )
    enforce_eager: bool = option(False, "Never capture device graphs.")

    def __post_init__(self) -> None:
        check_bounds(self)
